#!/usr/bin/env bash
# Every header compiles alone: what includes it need include nothing before it. One run of the compiler
# over all of them, with the build's own flags, each included twice in a function-less file.
set -euo pipefail
build=$1
cd "$2"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The compiler and its flags for a file that sees all libraries (once with CUDA and once without, where it is),
# without what names its input and output.
command=$(sed -nE 's/.*"command": "([^"]*) -c [^"]*\/trainer\/train\.c",/\1/p' "$build/compile_commands.json" |
  sed -nE '1{s/ -o [^ ]+//; s/ -M[A-Z]+( [^ ]+)?//g; s/ -fsanitize=[^ ]+//g; p}')
[ -n "$command" ] || { echo "expected the flags of trainer/train.c in $build/compile_commands.json" >&2; exit 1; }

count=0
while read -r header; do
  case $header in
  *cuda*|*nccl*) continue ;; # need CUDA's own headers
  esac
  file="$scratch/$(echo "$header" | tr '/.' '__').c"
  printf '#include "%s"\n#include "%s"\nextern int up_no_empty_unit;\n' "${header#src/}" "${header#src/}" >"$file"
  count=$((count + 1))
done < <(find src trainer profiler report -name '*.h' | sort)
((count >= 40)) || { echo "expected some fifty headers, found $count" >&2; exit 1; }
# shellcheck disable=SC2086 -- flags are words
$command -Werror -fsyntax-only -Wno-unused-function "$scratch"/*.c
