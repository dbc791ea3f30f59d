#!/usr/bin/env bash
# The headline: Llama3-8B on this machine's GPUs from 128K tokens to 5M, speed and memory together, each run's own
# forecast beside what came of it.
#
#   benchmarks/headline.sh BUILD RANKS [options of upipe-train, of all runs]
#
# First the machine is learnt from one traced run. Then, for each of LENGTHS ("128K 512K 1M:20"; N behind a colon: so
# many of the 32 layers keep attention, as many as the host has memory for), benchmarks/speed.py measures a few layers,
# the state of all there, and says what the whole step takes. Then each of LONG ("3M 5M") runs a step with 1 and with
# 2 active layers (BLOCKS="1 2") under LIMIT=80GiB, beside the forecast of all 32. LENGTHS= or LONG= leaves one part
# out. KEEP=DIR keeps traces and machine.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:?expected the folder with upipe-train}")
ranks=${2:?expected the number of GPUs}
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
keep=${KEEP:-$scratch/keep}
mkdir -p "$keep"
device=(--device cuda)
[[ " $* " != *" --device "* ]] || device=()
common=(--model llama3-8b --ranks "$ranks" --stack upipe --upipe 8 --tile-attn 32K --tile-mlp 16K --tile-loss 4K "$@")

# What score has to say of a trace's own forecast: a line.
score() { # NAME TRACE
  "$build/upipe-report" score --json "$2" | python3 -c '
import json, sys
words = []
for line in json.load(sys.stdin)["scores"]:
    if not line.get("category"):
        unit = 2**30 if line["unit"] == "bytes" else 1
        words.append("%s %.2f, was %.2f (%+.1f%%)" % (line["name"], line["forecast_value"] / unit,
                                                      line["measured"] / unit, 100 * line["relative"]))
print("  " + sys.argv[1] + " forecast: " + "; ".join(words))' "$1"
}

"$(dirname "${BASH_SOURCE[0]}")/text.py" 6000000 >"$scratch/data"
train() { "$build/upipe-train" "${device[@]}" "${common[@]}" --data "$scratch/data" "$@" >"$scratch/log" 2>&1; }

machine=$keep/machine.json
train --seq 128K --checkpoint attn --layers 2 --steps 3 --trace "$keep/calibrate.db" --trace-level kernels ||
  { cat "$scratch/log" >&2; exit 1; }
"$build/upipe-report" calibrate "$keep/calibrate.db" -o "$machine" | tail -1

for length in ${LENGTHS-128K 512K 1M:20}; do
  seq=${length%:*} attn=() layers=1,2
  [ "$seq" = "$length" ] || attn=(--attn "${length#*:}")
  [ "$seq" != 128K ] || layers=4,8
  echo "== $seq"
  mkdir -p "$keep/$seq"
  python3 "$root/benchmarks/speed.py" "$build" "${device[@]}" "${common[@]}" --seq "$seq" --layers "$layers" \
    --keep "$keep/$seq" --machine "$machine" "${attn[@]}" || continue
  for trace in "$keep/$seq"/*.db; do score "$(basename "$trace" .db)" "$trace"; done
done

for seq in ${LONG-3M 5M}; do
  for blocks in ${BLOCKS:-1 2}; do
    for optimizer in device host; do
      options=(--seq "$seq" --checkpoint attn --memory-limit "${LIMIT:-80GiB}" --machine "$machine"
        --optimizer "$optimizer" --active-layers "$blocks" --steps 1)
      echo "== $seq, $blocks active layers, optimizer's state on the $optimizer"
      if train "${options[@]}" --trace "$keep/$seq-$blocks.db"; then
        tail -2 "$scratch/log" | head -1
        score "$seq-$blocks" "$keep/$seq-$blocks.db"
        break
      fi
      grep -m1 upipe-train: "$scratch/log" || true
    done
  done
  "$build/upipe-train" --device dry "${common[@]}" --seq "$seq" --checkpoint attn --machine "$machine" --steps 1 \
    --no-admission 2>/dev/null | tail -1 | sed 's/^/  all 32 layers: /'
done
