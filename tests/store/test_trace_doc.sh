#!/bin/bash
# docs/trace.md is what scripts/trace-doc makes of schema.sql, and tells of every table, view and
# column that SQLite finds in it. Given the build and the source folder.
set -eu
source_folder=$2
page=$(mktemp)
trap 'rm -f "$page"' EXIT
"$source_folder/scripts/trace-doc" > "$page"
diff -u "$source_folder/docs/trace.md" "$page" ||
    { echo "docs/trace.md is not up to date: run scripts/trace-doc > docs/trace.md"; exit 1; }
names=$(grep -E '^CREATE (TABLE|VIEW)' "$source_folder/src/store/schema.sql" | awk '{print $3}')
[ "$(echo "$names" | wc -l)" -ge 15 ]
for name in $names; do
    grep -q "^## [A-Z][a-z]* \`$name\`\$" "$page" || { echo "$name is not on the page"; exit 1; }
done
columns=$(grep -cE '^  [a-z_]+ (TEXT|INTEGER|REAL)' "$source_folder/src/store/schema.sql")
[ "$(grep -c '^| `' "$page")" -eq "$columns" ] || { echo "columns are missing"; exit 1; }
