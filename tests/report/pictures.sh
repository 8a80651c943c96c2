#!/usr/bin/env bash
# The README's pictures are those that lib/report/pictures/draw.sh draws and show what the program plans. For the step's
# picture the order of the passes is checked, not their times, which depend on constants that are refitted at times.
#   pictures.sh SOURCE_FOLDER PATH_OF_trireme
set -euo pipefail
source_dir=$1 trireme=$2 pictures=$1/lib/report/pictures
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
TRIREME=$trireme "$pictures/draw.sh" "$folder"
mkdir "$folder/shown"
for file in "$folder"/*.svg "$pictures"/*.svg; do
  shown=$folder/shown/$(basename "$(dirname "$file")")_$(basename "$file")
  case $file in
    */step.svg) grep -oE '<rect.* class="(forward|backward)[a-z ]*"|stage [0-9]+' "$file" | sed 's/.* class=/class=/' ;;
    *) cat "$file" ;;
  esac >"$shown"
done
for name in mesh step loss; do
  cmp "$folder/shown/$(basename "$folder")_$name.svg" "$folder/shown/pictures_$name.svg" ||
    fail "$name.svg differs from the output of draw.sh; run draw.sh, look at the picture, and commit it"
  grep -q "lib/report/pictures/$name.svg" "$source_dir/README.md" || fail "the README does not show $name.svg"
done
# count PATTERN FILE
count() { grep -cE "$1" "$folder/$2" || true; }
[[ $(count 'class="cell"' mesh.svg) == 32 ]] || fail "expected 32 ranks: $(count 'class="cell"' mesh.svg)"
[[ $(count 'class="node"' mesh.svg) == 4 ]] || fail "expected 4 nodes"
grep -q 'rank 13: pp1 dp1 tp1, node 1' "$folder/mesh.svg" || fail "rank 13 is in the wrong position"
grep -q 'layers 15-19, 35-39' "$folder/mesh.svg" || fail "the last stage has the wrong layers"
# 4 stages x 2 chunks x 8 microbatches, plus the legend.
for kind in forward backward; do
  [[ $(count "<rect.* class=\"$kind( later)?\"" step.svg) == 65 ]] || fail "expected 64 passes: $kind"
done

echo "a long axis shows its first ranks and the last one"
"$trireme" check "$source_dir/configs/megascale_175b.yaml" --ranks 12288 --no-data --svg "$folder/large.svg" >/dev/null
grep -q '>12287<' "$folder/large.svg" || fail "the last rank is missing"
(($(stat -c %s "$folder/large.svg") < 200000)) || fail "12,288 ranks are drawn"

echo "a mesh of few ranks is as wide as its longest text"
"$trireme" check "$source_dir/configs/quickstart.yaml" --ranks 8 --no-data --svg "$folder/few.svg" >/dev/null
width=$(sed -n 's/.* viewBox="0 0 \([0-9]*\) .*/\1/p' "$folder/few.svg")
longest=$(
  grep -oE '>[^<>]+</text>' "$folder/few.svg" | awk '{n = length($0) - 8; if (n > most) most = n} END {print most}'
)
((longest > 80 && 32 + 64 * longest / 10 <= width)) || fail "few.svg is $width wide, its text $longest characters long"

echo "a picture that cannot be drawn is reported"
printf 'run:\n  name: empty\n' >"$folder/config.yaml"
status=0
"$trireme" report "$folder" --pictures "$folder/none" 2>"$folder/said" || status=$?
[[ $status == 2 ]] || fail "status $status"
grep -q 'fewer than two steps' "$folder/said" || fail "$(cat "$folder/said")"
if ! command -v python3 >/dev/null; then
  echo "skipped: whether names keep pictures and page well-formed (no python3)"
  exit 0
fi
python3 -c 'import sys, xml.etree.ElementTree as t; [t.parse(p) for p in sys.argv[1:]]' "$folder"/*.svg || fail "a picture is not well-formed XML"

echo "pictures and pages show names unchanged, and names end no element"
python3 -B "$source_dir/tests/report/odd_names.py" "$trireme" "$source_dir/configs" "$folder/odd" || fail "odd_names.py failed"
echo "all well"
