#!/usr/bin/env bash
# Forecasts against measurements, for every rung of the ladder: own categories, the device in all, host memory and
# the time of a step, as upipe-report score has them.
#
#   benchmarks/forecasts.sh BUILD [options of upipe-train, of all runs]
#
# First one run is traced with its kernels' times, calibrate learns this machine from it, and then each rung runs
# with that machine: its own forecast, made before it began, is in its trace. A rung that does not fit is named.
# RUNGS="upipe attn" takes some of the rungs alone ("attn": upipe, with attention kept), MACHINE=FILE another's
# machine file in place of calibrating, CALIBRATED=FILE keeps what was learnt, STEPS=N makes so many.
set -euo pipefail
build=$(realpath "${1:?expected the folder with upipe-train}")
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rungs=${RUNGS:-none fsdp ulysses checkpoint offload tiled upipe attn}
(($#)) || set -- --device cuda --model llama3-8b --layers 2 --seq 128K
"$(dirname "${BASH_SOURCE[0]}")/text.py" 4000000 >"$scratch/data"

options_of() { # RUNG
  case $1 in
  attn) echo --stack upipe --checkpoint attn ;;
  *) echo --stack "$1" ;;
  esac
}

train() { # RUNG TRACE WORDS...
  local rung=$1 trace=$2
  shift 2
  # shellcheck disable=SC2046
  "$build/upipe-train" "$@" $(options_of "$rung") --data "$scratch/data" --trace "$trace" >"$scratch/log" 2>&1
}

machine=${MACHINE:-}
if [ -z "$machine" ]; then
  machine=${CALIBRATED:-$scratch/calibrated.json}
  train attn "$scratch/first.db" "$@" --steps 3 --trace-level kernels || { tail -1 "$scratch/log"; exit 1; }
  "$build/upipe-report" calibrate "$scratch/first.db" -o "$machine" | tail -1
fi
for rung in $rungs; do
  if ! train "$rung" "$scratch/$rung.db" "$@" --steps "${STEPS:-3}" --machine "$machine"; then
    printf '%-11s %s\n' "$rung" "$(grep -m1 upipe-train: "$scratch/log" | cut -c-110)"
    continue
  fi
  "$build/upipe-report" score --json "$scratch/$rung.db" >"$scratch/$rung.json"
done

# shellcheck disable=SC2086
python3 - "$scratch" $rungs <<'END'
import json, os, sys
scratch, *rungs = sys.argv[1:]
worst = {"device": 0, "time": 0}
print(f"{'rung':11} {'categories':>14} {'peak GiB':>9} {'device in all, GiB':>26} {'host GiB':>9} {'step, s':>24}")
for rung in rungs:
    if not os.path.exists(f"{scratch}/{rung}.json"):
        continue
    lines = json.load(open(f"{scratch}/{rung}.json"))["scores"]
    of = {line["name"]: line for line in lines if not line.get("category")}
    off = sum(line["error"] != 0 for line in lines if line.get("category") or line["name"] == "peak")
    def pair(name, scale):
        line = of.get(name)
        if not line:
            return "not known"
        return f"{line['forecast_value'] / scale:.2f} {line['measured'] / scale:.2f} {100 * line['relative']:+.2f}%"
    for key, name in (("device", "device in all"), ("time", "step time")):
        if name in of:
            worst[key] = max(worst[key], abs(of[name]["relative"]))
    host = of["host memory"]
    print(f"{rung:11} {'exact' if not off else f'{off} differ':>14} {of['peak']['measured'] / 2**30:9.2f}"
          f" {pair('device in all', 2**30):>26} {host['measured'] / 2**30:8.2f}{'=' if not host['error'] else '!'}"
          f" {pair('step time', 1):>24}")
print(f"worst: device in all {100 * worst['device']:.2f}%, step time {100 * worst['time']:.1f}%")
END
