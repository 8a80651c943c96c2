#!/usr/bin/env bash
# Runs the documented step of io/tokens/README.md that converts Parquet to JSON lines, on files with missing texts, and
# `data prepare` on its output.
#   parquet_step.sh SOURCE_FOLDER PATH_OF_trireme
# Environment: TRIREME_TEST_PYTHON  an interpreter with pyarrow, from make clients (default: PYTHON, or python3)
set -euo pipefail
source_dir=$1 trireme=$2
python=${TRIREME_TEST_PYTHON:-${PYTHON:-python3}}
for needed in "$python -c 'import pyarrow.parquet'" "zstd --version"; do
  bash -c "$needed" >/dev/null 2>&1 || { echo "skipped: this fails: $needed"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir crawl bin
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >bin/python3
chmod +x bin/python3
"$python" - <<'PYTHON'
import pyarrow, pyarrow.parquet
for name, texts in (("a", ["hello wörld", None, "two\nlines"]), ("b", ["", "z" * 1000])):
    table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
    pyarrow.parquet.write_table(table, f"crawl/{name}.parquet")
PYTHON
awk '/^python3 -c .import json, sys, pyarrow/ {step = 1} step; />crawl.jsonl.zst$/ {step = 0}' \
  "$source_dir/io/tokens/README.md" >step
[[ -s step ]] || { echo "FAILED: the README does not contain the step"; exit 1; }
PATH=$PWD/bin:$PATH bash -euo pipefail step
prepare=("$trireme" data prepare --tokenizer bytes --output crawl/web crawl.jsonl.zst --json)
said=$("${prepare[@]}" 2>log) || { echo "FAILED: $(cat log)"; exit 1; }
expected='"documents":3,"tokens":1024,"text_bytes":1021' # texts of 12, 9 and 1000 bytes, and the end of each
[[ $said == *"$expected"* ]] || { echo "FAILED: no $expected in $said"; exit 1; }
echo "all well"
