#!/usr/bin/env bash
# A PyTorch training script under libupipe_inject.so: what the trace says the driver gave, at its peak, against what
# the driver itself said meanwhile; whether the peak is in a range of the script's and in the name of PyTorch's own
# libraries; and every sub-command of the report on such a trace.
#
#   benchmarks/injection.sh [BUILD FOLDER] [options of benchmarks/injected.py, such as --steps 4 --seq 4096]
#
# Needs one GPU, with nobody else on it, and PyTorch. PYTHON=python3 is run in the environment as it is;
# UPIPE_LIBRARY_PATH: folders that upipe's own programs, and they alone, are to look for libraries in first.
# TOLERANCE=1 is by how many percent the two may differ. KEEP=run.db keeps the trace.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${1:-$root/build/release}")
shift || true
python=${PYTHON:-python3}
inject=$build/libupipe_inject.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
db=$scratch/run.db
libraries=${UPIPE_LIBRARY_PATH:+$UPIPE_LIBRARY_PATH:}${LD_LIBRARY_PATH:-}
failed=0

report() { env ${libraries:+LD_LIBRARY_PATH="$libraries"} "$build/upipe-report" "$@"; }
say() { printf '%-74s %s\n' "$1" "$2"; }
fail() { say "$1" "FAILED: $2"; failed=1; }

# Libraries of the injection library's that Python's environment lacks are loaded into it by their path: with their
# whole folder in LD_LIBRARY_PATH, PyTorch might find another CUDA there than its own.
[ -e "$inject" ] || { echo "expected $inject: upipe is to be built with CUDA 13" >&2; exit 2; }
preload=${LD_PRELOAD:-}
for library in $(ldd "$inject" | awk '/not found/ { print $1 }'); do
  found=
  IFS=: read -ra folders <<<"${UPIPE_LIBRARY_PATH:-}"
  for folder in "${folders[@]}"; do
    [ -n "$found" ] || [ ! -e "$folder/$library" ] || found=$(realpath "$folder/$library")
  done
  [ -n "$found" ] || { echo "expected $library, which libupipe_inject.so needs" >&2; exit 2; }
  preload=${preload:+$preload:}$found
done

status=0
env ${preload:+LD_PRELOAD="$preload"} CUDA_INJECTION64_PATH="$inject" NVTX_INJECTION64_PATH="$inject" \
  UPIPE_TRACE="$db" "$python" "$root/benchmarks/injected.py" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
grep "^upipe:" "$scratch/err" >&2 || true
if [ "$status" != 0 ]; then
  tail -20 "$scratch/err" >&2
  echo "injected.py ended with status $status" >&2
  exit 1
fi
tail -1 "$scratch/out" >"$scratch/told.json"
cat "$scratch/told.json"
if [ ! -e "$db" ]; then
  tail -5 "$scratch/err" >&2
  echo "nothing was recorded: no $db (\"injected\" above: whether the library was loaded)" >&2
  exit 1
fi
[ -z "${KEEP:-}" ] || cp "$db" "$KEEP"

# Every sub-command that takes a run.
for words in "" "--json" "peak" "peak --json --limit 1000" "tensors" "tensors --json" "timeline" "timeline --json" \
  "history" "diff $db" "check --baseline $db" "advise"; do
  name=${words%% *}
  [[ $name == --* ]] && name=
  read -ra rest <<<"${words#"$name"}"
  status=0
  report ${name:+"$name"} "$db" "${rest[@]}" >"$scratch/page" 2>"$scratch/page.err" || status=$?
  what="upipe-report${name:+ $name} run.db${rest[*]:+ ${rest[*]}}"
  what=${what//$scratch\//}
  if [ "$status" = 0 ] && [ -s "$scratch/page" ]; then
    say "$what" "status 0, $(wc -l <"$scratch/page") lines"
  else
    fail "$what" "status $status: $(head -1 "$scratch/page.err")"
  fi
  case $words in
  "") mv "$scratch/page" "$scratch/first" ;;
  "--json") mv "$scratch/page" "$scratch/first.json" ;;
  peak*--json*) mv "$scratch/page" "$scratch/peak.json" ;;
  esac
done
echo
cat "$scratch/first"
echo

"$python" - "$scratch" "${TOLERANCE:-1}" <<'END' || failed=1
import json, re, sqlite3, sys
scratch, tolerance = sys.argv[1], float(sys.argv[2])
told, first, peak = (json.load(open(f"{scratch}/{name}.json")) for name in ("told", "first", "peak"))
db = sqlite3.connect(f"{scratch}/run.db")
failed = False


def say(what, value, wrong=None):
    global failed
    failed |= bool(wrong)
    print(f"{what:44} {value}" + (f"  FAILED: {wrong}" if wrong else ""))


def size(count):
    return "not known" if count is None else f"{count:,} bytes ({count / 2**30:.3f} GiB)"


def compare(what, ours, theirs, gate):
    percent = 100 * (ours - theirs) / theirs if theirs else float("inf")
    wrong = f"more than {tolerance:g}%" if gate and not abs(percent) <= tolerance else None
    say(what, f"{ours - theirs:+,} bytes, {percent:+.3f}%", wrong)


items = {}
for row in first.get("reconciliation", []):
    items[row["item"]] = items.get(row["item"], 0) + row["bytes"]
used, theirs, before = items.get("device used"), told["used_bytes"], told.get("before_bytes") or 0
place = first.get("peak") or {}
if used is None or theirs is None or not place:
    say("peak", "not known", "the trace does not say what the device had in use")
else:
    ours = used - items["unattributed"]
    say("the driver's own figure, highest", f"{size(theirs)}, in {told['at']}, of {told['looks']} looks")
    say("  before the program began, by NVML", size(told.get("before_bytes")))
    say("  of the process at the end, by NVML", size(told.get("process_bytes")))
    say("the trace's, at its peak", size(ours))
    say("  allocations that were seen", size(items["categories"]))
    for item, count in items.items():
        if item not in ("categories", "arena slack", "unattributed", "device used"):
            say(f"  {item}", size(count))
    say("  and nobody's", size(items["unattributed"]))
    compare("the trace's less the driver's", ours, theirs, True)
    if before:
        compare("  both without what was there before", ours - before, theirs - before, True)
    compare("  with what is nobody's", used, theirs, False)

path = (place.get("range") or "").split(" > ")
known = [name for name in path if name in told["ranges"]]
say("the peak's range", " > ".join(path), None if known else "none of the script's")
owners = {}
for tensor in peak.get("largest", []):
    owners[tensor["name"]] = owners.get(tensor["name"], 0) + tensor["bytes"]
pytorch = [name for name in owners if re.search("torch|c10|cublas", name)]
say("owners at the peak", ", ".join(f"{n} {b / 2**20:.1f} MiB" for n, b in sorted(owners.items(), key=lambda o: -o[1])),
    None if pytorch else "none of PyTorch's libraries")
say("PyTorch's allocator says it reserved", size(told.get("reserved_bytes")))
names = {name for name, in db.execute("SELECT DISTINCT name FROM range")}
missing = [name for name in told["ranges"] if name not in names]
say("ranges", f"{len(told['ranges'])} of the script's", f"not in the trace: {missing[:5]}" if missing else None)
kernels, = db.execute("SELECT count(*) FROM kernel").fetchone()
placed, = db.execute("SELECT count(*) FROM kernel WHERE range_id IN (SELECT id FROM range)").fetchone()
say("kernels", f"{kernels}, {placed} of them in ranges", None if placed else "none")
meta = dict(db.execute("SELECT key, value FROM meta"))
say("complete", meta.get("complete"), None if meta.get("complete") == "1" else "expected 1")
for kind, text in db.execute("SELECT kind, text FROM diagnostic"):
    say(f"diagnostic {kind}", text, "expected none" if kind in ("cupti", "cupti_dropped", "injection") else None)
sys.exit(failed)
END
exit "$failed"
