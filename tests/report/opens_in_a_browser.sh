#!/usr/bin/env bash
# Opens the report of a run of 12,288 ranks, and of two runs side by side, in a headless Chromium: everything is drawn
# without errors and without a single request. Skipped (77) if there is no Chromium.
#   opens_in_a_browser.sh PATH_OF_trireme PATH_OF_synthetic_run
set -euo pipefail
trireme=$(realpath "$1") synthetic_run=$(realpath "$2")
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [[ -z $browser ]]; then
  echo "skipped: no Chromium"
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || exit 1
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}

# open PAGE: stores the document, once everything is drawn, in $folder/dom.html, and the console's messages in log.txt.
open() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$folder/profile" \
    --host-resolver-rules="MAP * ~NOTFOUND" --enable-logging=stderr --window-size=1400,900 \
    --dump-dom "file://$1" >"$folder/dom.html" 2>"$folder/log.txt" || fail "the browser: $(tail -3 "$folder/log.txt")"
  if grep -E 'CONSOLE.*(Error|Refused|Uncaught)' "$folder/log.txt"; then fail "errors in $1"; fi
  grep -q '<html[^>]* data-drawn="' "$folder/dom.html" || fail "$1 was not drawn"
}
# has TEXT: checks that the document contains it.
has() { grep -qF -- "$1" "$folder/dom.html" || fail "the document lacks: $1"; }

"$synthetic_run" "$folder/large" 4000 8 192 8 30
"$trireme" report "$folder/large" >"$folder/said.txt"
grep -q "wrote .*large/report.html (.*); open it in a browser" "$folder/said.txt" || fail "the command printed $(cat "$folder/said.txt")"
(($(stat -c %s "$folder/large/report.html") < 6000000)) || fail "the page is too large"
open "$folder/large/report.html"
has "12,288 ranks"
has "attempt 2 resumed at step"
has "5 failures, the last: "
has "over the last tenth of the steps"
has ">GPU power, rank 0<"
has ">CSV<"
has "the GPU is lost (XID 79)"
has "lr.peak"
has "rank 5 [pp0 dp0 tp5] on node0000"
has "rate of its GEMMs"
paths=$(grep -o '<path' "$folder/dom.html" | wc -l)
((paths > 40)) || fail "only $paths paths are drawn"
echo "drawn after $(sed -n 's/.*<html[^>]* data-drawn="\([0-9]*\)".*/\1/p' "$folder/dom.html") ms"

"$synthetic_run" "$folder/a" 300 2 2 2 6 1 hang
"$synthetic_run" "$folder/b" 200 1 4 2 6 2
# shellcheck disable=SC2016 # it is text
printf 'run:\n  name: "<img src=x onerror=alert(1)></script>`${a}`"\n' >"$folder/b/resolved.yaml"
# A first step that takes far longer than all others must not hide them.
sed -i '0,/"step_ms":[0-9.]*/s//"step_ms":98760/' "$folder/b/metrics.jsonl"
(cd "$folder" && "$trireme" report a b >said.txt)
open "$folder/report.html"
# Text in the document has escaped characters, also within elements; a real element would have a real bracket.
if grep -q '<img' "$folder/dom.html"; then fail "a name became an element"; fi
has "&lt;img src=x onerror=alert(1)&gt;"
has "only fields that differ"
has "Config: "
has ">difference<"
has "Cut off: the highest value is 98,760"
has "ranks that wait for other ranks"
has "Ranks that wait directly for "
has "Neither a hang nor steps were recorded"
# The table shows the ranks for which others wait.
has "<td>rank 5 [pp1 dp0 tp1]</td>"
# A run with another axis, the slowest one: the places of its ranks name the axis, and each stage has its own ranks.
"$synthetic_run" "$folder/c" 200 2 1 2 6 3 hang 2
"$trireme" report "$folder/c" >/dev/null
open "$folder/c/report.html"
has "8 ranks: blocks are stages (pp 2), rows tp ranks (2), columns x and dp ranks (2)"
has "rank 5 [x1 pp0 dp0 tp1] on node0000"
has "<td>rank 5 [x1 pp0 dp0 tp1]</td>"
has "waits along x"
# A model with experts has its own section, which the pages above lack.
if grep -qF 'href="#experts"' "$folder/dom.html"; then fail "a dense model has a section about experts"; fi
"$synthetic_run" "$folder/d" 200 1 2 2 6 4 hang 1 8 64
"$trireme" report "$folder/d" >/dev/null
open "$folder/d/report.html"
has 'href="#experts"'
has "8 layers of 64 experts: rows are layers, columns experts"
has "Balance of each layer at step 200"
has "Experts without rows, in all layers"
has "8 dead (in 8 layers)"
# Opens a simulation's page with its pictures.
source_dir=$(realpath "$(dirname "$0")/../..")
"$trireme" simulate "$source_dir/configs/megascale_175b.yaml" --ranks 256 --to 12288 \
  --cluster "$source_dir/configs/clusters/a100_megascale.yaml" --report "$folder/simulation.html" >/dev/null 2>&1
open "$folder/simulation.html"
has "What each choice gains"
has "without tp overlap"
has "% slower than the best layout that fits"
has "uncertain"
has "Layouts"
bars=$(grep -o '<title>[a-zA-Z ()-]*: [0-9.]* m\?s, ' "$folder/dom.html" | wc -l)
((bars > 100)) || fail "only $bars parts of bars are drawn"
echo "PASSED"
