#!/usr/bin/env bash
# A run that is killed at any moment leaves no run.db or one that can be believed: twenty runs are killed, each at
# a random moment, and what each leaves is held to what it says of itself.
#
#   benchmarks/kills.sh [BUILD FOLDER] [options of upipe-train in place of those below]
#
# DEVICE=cpu does the same without a GPU. SEED=N kills at the moments of an earlier run, ROUNDS=N so many runs.
# UPIPE_LIBRARY_PATH: folders with libraries that upipe's programs, and they alone, are to look in first.
# Every other run records all steps (--trace-steps), so that rows of every kind are being written when it ends.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:-$root/build/release}")
shift || true
device=${DEVICE:-cuda} rounds=${ROUNDS:-20} seed=${SEED:-$RANDOM}
if ((!$#)); then
  set -- --model tiny --seq 16K
  [ "$device" = cuda ] || set -- --model tiny --seq 256
fi
scratch=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$scratch"' EXIT
"$(dirname "${BASH_SOURCE[0]}")/text.py" 4000000 >"$scratch/data"
libraries=${UPIPE_LIBRARY_PATH:+$UPIPE_LIBRARY_PATH:}${LD_LIBRARY_PATH:-}

# upipe PROGRAM WORDS...: replaces the shell that calls it.
upipe() {
  local program=$build/$1
  shift
  exec env ${libraries:+LD_LIBRARY_PATH="$libraries"} "$program" "$@"
}

# What of the rows contradicts itself, a line each.
cat >"$scratch/check.py" <<'END'
import sqlite3, sys
from collections import defaultdict

db = sqlite3.connect(sys.argv[1])
wrong = []


def expect(what, condition):
    if not condition:
        wrong.append(what)


def none(what, sql):
    rows = db.execute(sql).fetchmany(1000)
    expect(f"{what}: {len(rows)} rows, such as {rows[:1]}", not rows)


expect("integrity_check", [r[0] for r in db.execute("PRAGMA integrity_check")] == ["ok"])
expect("foreign_key_check", not db.execute("PRAGMA foreign_key_check").fetchall())
meta = dict(db.execute("SELECT key, value FROM meta"))
complete = meta.get("complete") == "1"

# What a row refers to is there.
for table in "tensor", "kernel", "copy", "collective":
    none(f"a {table}'s range is not there",
         f"SELECT * FROM {table} WHERE range_id IS NOT NULL AND range_id NOT IN (SELECT id FROM range)")
none("a range's parent is not there", "SELECT * FROM range WHERE parent NOT IN (SELECT id FROM range)")
none("a tensor's storage is not there", "SELECT * FROM tensor WHERE storage_id NOT IN (SELECT id FROM tensor)")
for table in "tensor", "range", "step", "kernel", "copy", "collective", "device_alloc", "usage":
    none(f"a {table}'s rank is not there", f"SELECT * FROM {table} WHERE rank NOT IN (SELECT rank FROM rank)")
for table in "tensor", "range", "kernel", "copy", "collective":
    none(f"a {table}'s step is not there",
         f"SELECT t.* FROM {table} t LEFT JOIN step s ON s.step = t.step AND s.rank = t.rank"
         " WHERE t.step IS NOT NULL AND s.step IS NULL")
none("the step that another repeats has no rows of its own",
     "SELECT s.* FROM step s LEFT JOIN step o ON o.step = s.same_as_step AND o.rank = s.rank"
     " WHERE s.same_as_step IS NOT NULL AND (o.step IS NULL OR o.same_as_step IS NOT NULL OR o.step >= s.step)")

# Nothing ends before it begins.
none("a free before its allocation",
     "SELECT * FROM tensor WHERE free_seq <= alloc_seq OR free_ns < alloc_ns"
     " OR (free_seq IS NULL) <> (free_ns IS NULL)")
none("a free before its allocation, of the driver", "SELECT * FROM device_alloc WHERE free_ns < alloc_ns")
none("a range that ends before it begins",
     "SELECT * FROM range WHERE end_seq <= begin_seq OR end_ns < begin_ns OR device_end_ns < device_begin_ns")
for table in "kernel", "copy", "collective", "step":
    none(f"a {table} that ends before it begins", f"SELECT * FROM {table} WHERE end_ns < begin_ns")
none("two events at one moment",
     "SELECT rank, seq, count(*) FROM (SELECT rank, alloc_seq AS seq FROM tensor UNION ALL"
     " SELECT rank, free_seq FROM tensor WHERE free_seq IS NOT NULL UNION ALL"
     " SELECT rank, begin_seq FROM range UNION ALL"
     " SELECT rank, end_seq FROM range WHERE end_seq IS NOT NULL) GROUP BY 1, 2 HAVING count(*) > 1")
for rank, first, last, count, open_steps in db.execute(
        "SELECT rank, min(step), max(step), count(*), sum(end_ns IS NULL AND step < (SELECT max(step) FROM step o"
        " WHERE o.rank = s.rank)) FROM step s GROUP BY rank"):
    expect(f"steps of rank {rank}: {count} from {first} to {last}, {open_steps} of them open before the last",
           first == 0 and count == last + 1 and not open_steps)

# What is alive adds up: at each recorded peak to what the step said, and at the end within what was taken.
alive = defaultdict(dict)  # of (rank, space): storage -> (offset, reserved, bytes)
steps = defaultdict(list)
for rank, step, seq, peak in db.execute("SELECT rank, step, peak_seq, peak_bytes FROM step"
                                        " WHERE peak_seq IS NOT NULL AND same_as_step IS NULL ORDER BY peak_seq"):
    steps[rank].append((seq, step, peak))
events = []
for rank, space, storage, size, reserved, offset, alloc, free in db.execute(
        "SELECT rank, space, storage_id, bytes, reserved_bytes, offset, alloc_seq, free_seq FROM tensor"):
    events.append((rank, alloc, space, storage, 1, size, reserved, offset))
    if free is not None:
        events.append((rank, free, space, storage, -1, size, reserved, offset))
events.sort()
ends = dict(db.execute("SELECT rank, max(seq) FROM (SELECT rank, max(alloc_seq) AS seq FROM tensor GROUP BY 1 UNION ALL"
                       " SELECT rank, max(free_seq) FROM tensor GROUP BY 1) GROUP BY 1"))
names = defaultdict(int)  # of a storage, how many are alive
live = defaultdict(int)
peaks = 0
at = 0
for rank in sorted(ends):
    moments = steps[rank] + [(ends[rank] + 1, None, None)]
    for seq, step, peak in moments:
        while at < len(events) and events[at][0] == rank and events[at][1] <= seq:
            _, _, space, storage, sign, size, reserved, offset = events[at]
            at += 1
            names[storage] += sign
            kept = alive[rank, space]
            if sign > 0 and storage not in kept:
                kept[storage] = (offset, reserved, size)
                live[rank, space] += size
            elif sign < 0 and not names[storage]:
                live[rank, space] -= kept.pop(storage)[2]
        if step is not None:
            peaks += 1
            expect(f"alive at the peak of step {step}, rank {rank}: {live[rank, 'device']} bytes, "
                   f"the step says {peak}", live[rank, "device"] == peak)

# The newest sample of the device that is from after all that the driver is known to have given or taken.
for rank, in db.execute("SELECT rank FROM rank"):
    arena = dict(db.execute("SELECT space, sum(bytes) FROM device_alloc WHERE rank = ? AND owner = 'arena'"
                            " AND free_ns IS NULL GROUP BY 1", (rank,)))
    for space, given in arena.items():
        taken = sum(reserved for _, reserved, _ in alive[rank, space].values())
        expect(f"alive at the end, rank {rank}, {space}: {taken} bytes of an arena of {given}", taken <= given)
    held, changed, before = db.execute(
        "SELECT total(CASE WHEN free_ns IS NULL THEN bytes END), max(max(alloc_ns, ifnull(free_ns, 0))),"
        " ifnull((SELECT max(baseline_used_bytes, 0) FROM rank WHERE rank = :rank), 0)"
        " FROM device_alloc WHERE rank = :rank AND space = 'device'", {"rank": rank}).fetchone()
    used = db.execute("SELECT device_used_bytes FROM usage WHERE rank = ? AND device_used_bytes IS NOT NULL"
                      " AND ns > ? + 500000000 ORDER BY ns DESC LIMIT 1", (rank, changed or 0)).fetchone()
    if changed and used:
        expect(f"held at the end, rank {rank}: {int(held + before)} bytes, the device has {used[0]} in use",
               held + before <= used[0] + max(used[0] / 100, 16 << 20))

done, = db.execute("SELECT count(*) FROM step WHERE end_ns IS NOT NULL").fetchone()
rows = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in
           ("tensor", "range", "step", "kernel", "copy", "collective", "device_alloc", "usage"))
print("complete" if complete else "incomplete", f"{done} steps, {rows} rows, {peaks} peaks added up", sep="\t")
for line in wrong:
    print(line, file=sys.stderr)
sys.exit(bool(wrong))
END

declare -A count=([none]=0 [incomplete]=0 [complete]=0) failures=([none]=0 [incomplete]=0 [complete]=0)

# judge STATUS: of the run that has ended; leaves what it found in $state, $says and $faults.
judge() {
  local db=$scratch/run.db found status=0
  state=none says="no run.db" faults=()
  [ "$1" = 137 ] || faults+=("expected a run that is killed, it ended with $1: $(tail -1 "$scratch/err")")
  [ -e "$db" ] || return 0
  (upipe upipe-report "$db") >"$scratch/page" 2>"$scratch/page.err" || status=$?
  [ "$status" = 0 ] || faults+=("upipe-report: status $status: $(head -1 "$scratch/page.err")")
  ! grep -q "the trace lacks or repeats rows" "$scratch/page" || faults+=("upipe-report: rows do not add up")
  found=$("${PYTHON:-python3}" "$scratch/check.py" "$db" 2>"$scratch/wrong") || true
  state=${found%%$'\t'*} says=${found#*$'\t'}
  case $state in
  incomplete)
    grep -q INCOMPLETE "$scratch/page" || faults+=("upipe-report: does not say INCOMPLETE")
    status=0
    (upipe upipe-report check "$db" --baseline "$db") >/dev/null 2>&1 || status=$?
    [ "$status" = 2 ] || faults+=("upipe-report check: expected status 2 for an incomplete run, got $status") ;;
  complete) ;;
  *) state=incomplete says="cannot be read" ;;
  esac
  while IFS= read -r line; do faults+=("$line"); done <"$scratch/wrong"
}

echo "SEED=$seed, $rounds runs of upipe-train --device $device $*"
RANDOM=$seed
for ((round = 0; round < rounds; round++)); do
  ms=$((500 + RANDOM * 5500 / 32768))
  rm -f "$scratch"/run.db* "$scratch"/{out,err,page,wrong}
  steps=()
  ((round % 2)) && steps=(--trace-steps 0:100000000)
  (upipe upipe-train --device "$device" --data "$scratch/data" --steps 100000000 --trace "$scratch/run.db" \
    --trace-level kernels "${steps[@]}" "$@") >"$scratch/out" 2>"$scratch/err" &
  pid=$!
  sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
  status=0
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || status=$?
  pid=
  judge "$status"
  count[$state]=$((count[$state] + 1))
  ((${#faults[@]})) && failures[$state]=$((failures[$state] + 1))
  printf 'run %2d, killed after %d.%03d s: %-10s %s\n' "$round" $((ms / 1000)) $((ms % 1000)) "$state" "$says"
  for fault in "${faults[@]}"; do printf '  FAILED: %s\n' "$fault"; done
done

failed=0
for state in none incomplete complete; do
  name=$state
  [ $state != none ] || name="no run.db"
  printf '%-10s %3d runs, %d failed\n' "$name" "${count[$state]}" "${failures[$state]}"
  failed=$((failed + failures[$state]))
done
((count[incomplete])) || { echo "FAILED: no run got so far as to leave a run.db"; failed=1; }
((!failed))
