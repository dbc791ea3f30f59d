#!/usr/bin/env bash
# Several processes on this machine's GPUs, against one process that drives them all: the same losses, whoever
# launches them; when a process is killed in mid-run, the other ends within a minute and says why; when one is
# told to end, or the launcher is, all save first.
#
#   benchmarks/processes.sh [BUILD]     the folder with upipe-train, else build
#
# Needs two GPUs; with four, processes of two GPUs each are tried as well. torchrun and mpirun are tried where
# they are; without either, processes are started with torchrun's variables.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
train=$(realpath "${1:-$root/build}")/upipe-train
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
port=$((20000 + $$ % 10000))
# The same bits from the same seed, so that differences are the processes' own.
common=(--device cuda --data "$scratch/data" --seq 4K --steps 8 --deterministic)

gpus=$(nvidia-smi -L 2>/dev/null | wc -l) || gpus=0
((gpus >= 2)) || { echo "expected two GPUs or more, found $gpus" >&2; exit 2; }
cat "$root"/src/*/*.[ch] "$root"/trainer/*/*.[ch] >"$scratch/data"

say() { printf '%-74s %s\n' "$1" "$2"; }
fail() { say "$1" "FAILED: $2"; failed=1; }

# start P NUMBER WORDS...: one process of P, in the background, with torchrun's variables.
start() {
  local processes=$1 number=$2
  shift 2
  RANK=$number LOCAL_RANK=$number WORLD_SIZE=$processes LOCAL_WORLD_SIZE=$processes \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$train" "$@" >"$scratch/out.$number" 2>"$scratch/err.$number" &
}

# launch LAUNCHER P WORDS...: all of them, to their end.
launch() {
  local launcher=$1 processes=$2 pids=() number status=0
  shift 2
  port=$((port + 10))
  case $launcher in
  torchrun)
    torchrun --no-python --nnodes 1 --nproc-per-node "$processes" --master-addr 127.0.0.1 \
      --master-port "$port" "$train" "$@" >"$scratch/log" 2>&1 || status=$? ;;
  mpirun)
    local root_too=()
    if [ "$(id -u)" = 0 ]; then root_too=(--allow-run-as-root); fi
    MASTER_PORT=$port mpirun "${root_too[@]}" --oversubscribe --bind-to none -x MASTER_PORT -n "$processes" \
      "$train" "$@" >"$scratch/log" 2>&1 || status=$? ;;
  variables)
    for ((number = 0; number < processes; number++)); do
      start "$processes" "$number" "$@"
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    cat "$scratch"/out.* "$scratch"/err.* >"$scratch/log" ;;
  esac
  return "$status"
}

# losses FILE: of the steps, and gradient norms.
losses() { sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1"; }

# The largest difference of two logs' numbers, in proportion.
difference() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk '
    function gap(a, b) { return a == b ? 0 : (a > b ? a - b : b - a) / (a > 0 ? a : 1) }
    { d = gap($1, $3); e = gap($2, $4); if (d > worst) worst = d; if (e > worst) worst = e; n += NF == 4 }
    END { if (!n) print "nothing"; else printf "%.2g", worst }'
}

# compare P WORDS...: one process, then P of them by each launcher.
compare() {
  local processes=$1 name what gap
  shift
  name="$*"
  rm -rf "$scratch/one" "$scratch/several"
  if ! "$train" "${common[@]}" "$@" --json-log "$scratch/one.json" --save "$scratch/one" >"$scratch/log" 2>&1; then
    fail "one process: $name" "$(tail -1 "$scratch/log")"
    return
  fi
  for launcher in "${launchers[@]}"; do
    what="$launcher, $processes processes: $name"
    rm -rf "$scratch/several" "$scratch"/*.db
    if ! launch "$launcher" "$processes" "${common[@]}" "$@" --json-log "$scratch/several.json" \
      --save "$scratch/several" --trace "$scratch/run.db"; then
      fail "$what" "$(grep upipe-train: "$scratch/log" | head -1)"
      continue
    fi
    gap=$(difference "$scratch/one.json" "$scratch/several.json")
    if ! awk -v gap="$gap" 'BEGIN { exit !(gap != "nothing" && gap <= 2e-4) }'; then
      fail "$what" "losses differ by $gap"
    elif ! ls "$scratch"/run.{0,$((processes - 1))}.db >/dev/null 2>&1; then
      fail "$what" "expected a trace of each process"
    elif ! [ -f "$scratch/several/step-00000008/model.safetensors" ]; then
      fail "$what" "expected a save"
    elif cmp -s "$scratch"/{one,several}/step-00000008/model.safetensors; then
      say "$what" "losses within $gap, the same weights"
    else
      say "$what" "losses within $gap"
    fi
  done
}

# end_one SIGNAL NUMBER WHAT WORDS...: of two processes one gets the signal once steps are made.
end_one() {
  local signal=$1 number=$2 says=$3 other=$((1 - $2)) pids=() begin status=0 seconds
  shift 3
  port=$((port + 10))
  rm -f "$scratch"/{out,err}.*
  for ((i = 0; i < 2; i++)); do
    start 2 "$i" --device cuda --data "$scratch/data" --seq 4K --steps 1000000 "$@"
    pids+=($!)
  done
  for ((i = 0; i < 600; i++)); do
    ! grep -qs 'step  *5 ' "$scratch/out.0" || break
    sleep 0.2
  done
  kill "-$signal" "${pids[number]}"
  begin=$(date +%s.%N)
  wait "${pids[other]}" || status=$?
  seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  wait "${pids[number]}" 2>/dev/null || true
  local what="SIG$signal to process $number: $*"
  if [ "$status" != 1 ]; then
    fail "$what" "the other's status is $status"
  elif ! grep -q "$says" "$scratch/err.$other"; then
    fail "$what" "it says: $(head -1 "$scratch/err.$other")"
  elif ! awk -v s="$seconds" 'BEGIN { exit !(s < 60) }'; then
    fail "$what" "the other took $seconds s"
  else
    say "$what" "the other ended after $seconds s: $(head -1 "$scratch/err.$other")"
  fi
}

# end_launcher LAUNCHER SIGNAL WORDS...: the launcher itself gets the signal, and passes it on: the run goes on from
# its save.
end_launcher() {
  local launcher=$1 signal=$2 what="SIG$2 to $1" pid saves="$scratch/ended.$1" count saved
  shift 2
  port=$((port + 10))
  rm -f "$scratch/log"
  launch "$launcher" 2 --device cuda --data "$scratch/data" --seq 4K --steps 1000000 --save "$saves" "$@" &
  pid=$!
  for ((i = 0; i < 600; i++)); do
    ! grep -qs 'step  *5 ' "$scratch/log" || break
    sleep 0.2
  done
  pkill "-$signal" -P "$pid" -f "$launcher" || true
  wait "$pid" 2>/dev/null || true
  count=$(find "$saves" -name model.safetensors 2>/dev/null | wc -l)
  if [ "$count" != 1 ]; then
    fail "$what" "expected one save, found $count: $(tail -1 "$scratch/log")"
    return
  fi
  saved=$(basename "$saves"/step-*)
  if ! "$train" --device cuda --data "$scratch/data" --seq 4K --steps $((10#${saved#step-} + 1)) --resume "$saves" \
    "$@" >"$scratch/log" 2>&1; then
    fail "$what" "$saved does not go on: $(tail -1 "$scratch/log")"
  else
    say "$what" "saved $saved, which goes on"
  fi
}

launchers=(variables)
for program in torchrun mpirun; do
  if command -v "$program" >/dev/null; then launchers+=("$program"); else echo "not run: $program is not here"; fi
done

compare 2 --ranks 2 --stack upipe
compare 2 --dp 2 --fsdp on
compare 2 --dp 2
if ((gpus >= 4)); then
  compare 2 --ranks 4 --stack upipe
  compare 2 --cp 2 --dp 2 --fsdp on
  compare 4 --cp 2 --dp 2 --fsdp on
else
  echo "not run: two processes of two GPUs ($gpus here)"
fi
for number in 0 1; do
  end_one KILL "$number" "process $number (rank.*ended unexpectedly" --ranks 2 --stack upipe
  end_one TERM "$number" "process $number (rank.*interrupted" --ranks 2 --stack upipe
done
for number in 0 1; do
  end_one TERM "$number" "are done and saved" --ranks 2 --stack upipe --save "$scratch/saves.$number"
done
for launcher in "${launchers[@]:1}"; do
  end_launcher "$launcher" TERM --ranks 2 --stack upipe
done
if ((gpus >= 4)); then
  end_one KILL 1 "process 1 (ranks 2-3) ended unexpectedly" --cp 2 --dp 2 --fsdp on
fi
exit "$failed"
