#!/usr/bin/env bash
# What recording costs on a GPU: tokens/s without a trace and with one of each level, in turn, in one run; and
# how much of the device's use at the peak the books of the report leave unattributed.
#
#   benchmarks/profiler.sh [BUILD FOLDER] [options of upipe-train in place of those below]
#
# ROUNDS=3 takes each level three times (default 2); the best step after the first of all rounds counts. LEVELS="none
# memory" takes some of the levels alone, "none" among them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release}
shift || true
(($#)) || set -- --device cuda --model llama3-8b --layers 4 --seq 128K --stack upipe --upipe 8 --checkpoint attn
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$(dirname "${BASH_SOURCE[0]}")/text.py" 4000000 >"$scratch/data"

levels=${LEVELS:-none tensors memory kernels}
for ((round = 0; round < ${ROUNDS:-2}; round++)); do
  for level in $levels; do
    trace=()
    [ "$level" = none ] || trace=(--trace "$scratch/$level.db" --trace-level "$level")
    "$build/upipe-train" "$@" --steps 5 --data "$scratch/data" --json-log "$scratch/$level.$round" \
      "${trace[@]}" >"$scratch/out" || { cat "$scratch/out"; exit 1; }
  done
done

# shellcheck disable=SC2086
python3 - "$scratch" "$build/upipe-report" $levels <<'END'
import glob, json, subprocess, sys
scratch, report, *levels = sys.argv[1:]
def speed(level):
    steps = [json.loads(line) for name in glob.glob(f"{scratch}/{level}.[0-9]*") for line in open(name)]
    return max(s["tokens_per_s"] for s in steps if s["step"] > 0)
plain = speed("none")
print(f"{'level':10} {'tokens/s':>10} {'cost':>7}  unattributed at the peak")
for level in levels:
    line = f"{level:10} {speed(level):10.0f} {100 * (1 - speed(level) / plain):6.2f}%"
    if level != "none":
        said = json.loads(subprocess.check_output([report, "--json", f"{scratch}/{level}.db"]))
        items = {row["item"]: row["bytes"] for row in said.get("reconciliation", [])}
        used = items.get("device used")
        line += f"  {100 * items['unattributed'] / used:.2f}% of {used / 2**30:.1f} GiB" if used else "  not known"
    print(line)
END
