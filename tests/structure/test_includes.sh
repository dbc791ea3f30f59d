#!/usr/bin/env bash
# Holds the tree to docs/design.md: a file includes only from its own folder and from those above it on the
# list of folders there; *_impl.h stay inside their folder; every folder on the list is there, none is
# missing from it, and each library has a public header of its own name.
set -euo pipefail
cd "$2"
failed=0

fail() {
  echo "$*" >&2
  failed=1
}

# The list: indented lines under "## Folders", the folder first.
mapfile -t folders < <(awk '/^## / {on = $2 == "Folders"} on && /^    [a-z]/ {print $1}' docs/design.md)
((${#folders[@]} >= 10)) || fail "docs/design.md: expected the list of folders under '## Folders'"

for folder in "${folders[@]}"; do
  [ -d "$folder" ] || fail "docs/design.md: $folder: there is no such folder"
  name=${folder##*/}
  [ "$name" = "$folder" ] || [ -f "$folder/$name.h" ] || fail "$folder: expected its public header, $name.h"
done
for folder in src/*/ trainer/*/ report/*/; do
  [ "$folder" != trainer/machines/ ] || continue # data
  [[ " ${folders[*]} " == *" ${folder%/} "* ]] || fail "docs/design.md: ${folder%/} is not on its list of folders"
done

# Every quoted include of the sources, as "file:line:path", held to the list.
sources() {
  find "${folders[@]}" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def'
}
violations=$(sources | sort -u | xargs grep -Hn '^ *# *include *"' |
  awk -F: -v list="${folders[*]}" '
    BEGIN { count = split(list, folder, " "); for (i = 1; i <= count; i++) place[folder[i]] = i }
    function top(path) { # the longest of the list that holds it
      while (!(path in place) && sub(/\/[^\/]*$/, "", path)) ;
      return path
    }
    {
      path = $3
      sub(/^[^"]*"/, "", path); sub(/".*/, "", path)
      from = top($1)
      to = top("src/" path) in place ? top("src/" path) : top(path)
      n++
      if (!(to in place)) print $1 ":" $2 ": \"" path "\": expected a path that begins with a folder of docs/design.md"
      else if (place[to] > place[from]) print $1 ":" $2 ": " from " may not include \"" path "\": " to " comes after it"
      else if (to != from && path ~ /_impl\.h$/) print $1 ":" $2 ": \"" path "\" is for " to " alone"
    }
    END { if (n < 100) print "expected some hundred includes, found " n + 0 }')
[ -z "$violations" ] || fail "$violations"
exit "$failed"
