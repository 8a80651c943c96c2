#!/usr/bin/env bash
# check-jsonschema with the schema of run configs accepts and refuses the same configs as the executable. Skipped
# without check-jsonschema (make clients).
#   schema_agrees_with_the_parser.sh SOURCE_FOLDER PATH_OF_trireme
# Environment: TRIREME_TEST_PYTHON     an interpreter with check-jsonschema (default: python3)
#              TRIREME_EXPECT_CLIENTS  if set, a missing check-jsonschema is a failure
set -uo pipefail
source_dir=$1 trireme=$2 python=${TRIREME_TEST_PYTHON:-python3}
if ! "$python" -c 'import check_jsonschema' 2>/dev/null; then
  echo "skipped: no check-jsonschema"
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || exit 1
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/good" "$folder/bad"
cd "$folder" || exit 1
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
check_jsonschema() { "$python" -m check_jsonschema "$@"; }
# status FILE: prints 0 if the executable accepts the file, 2 if it refuses it.
status() {
  local status=0
  "$trireme" check "$1" --ranks 1 --get run.name >/dev/null 2>&1 || status=$?
  echo "$status"
}

"$trireme" check --schema >schema.json || fail "check --schema failed"
check_jsonschema --check-metaschema schema.json || fail "schema.json is not a valid JSON Schema"
check_jsonschema --schemafile schema.json "$source_dir"/configs/*.yaml || fail "the schema refuses a preset"

# The config expands these variables, not the shell.
# shellcheck disable=SC2016
good=(
  'run:' 'run: {}' 'lr: ~' 'run: {steps: 5}' 'lr: {peak: 3e-4, min: 0}' 'parallel: {schedule: 1f1b}'
  'fault: {watchdog: off}' 'precision: {fp8_wgrad: fp8, fp8_guard: off}' 'model: {bias: true}' 'run: {name: 5, dir: x/y}' 'run: {name: "${NONE_SUCH:-x}", dir: $HOME/x}'
  'data: {sources: [a, {path: b, weight: 0.5}]}' 'metrics: {timeline: "20:22", prometheus: "127.0.0.1:9400"}'
  'x-a: &a {steps: 4}
run: {<<: *a, name: b}'
)
bad=(
  'run: {stepz: 5}' 'modle: {}' 'run: 5' 'run: {steps: ten}' 'run: {steps: 0}' 'run: {steps: 1.5}' 'run: {name: a/b}'
  'run: {device: gpu}' 'lr: {peak: 0}' 'model: {bias: 1}' 'data: {sources: a}' 'data: {sources: [{weight: 1}]}'
  'data: {sources: [{path: a, wait: 1}]}' 'data: {sources: [{path: a, weight: 0}]}' 'metrics: {timeline: a}'
  'data: {tokenizer: ""}' 'run: {steps: [5]}' '[run]' 'precision: {fp8_guard: on}' 'precision: {gemm: auto}' 'x-a: &a {stepz: 4}
run: {<<: *a}'
)
for i in "${!good[@]}"; do printf '%s\n' "${good[i]}" >"good/$i.yaml"; done
for i in "${!bad[@]}"; do printf '%s\n' "${bad[i]}" >"bad/$i.yaml"; done

check_jsonschema --schemafile schema.json good/*.yaml || fail "a good config is refused"
check_jsonschema --schemafile schema.json -o json bad/*.yaml >bad.json
for file in good/*.yaml; do [[ $(status "$file") -eq 0 ]] || fail "trireme refuses $(cat "$file")"; done
for file in bad/*.yaml; do
  [[ $(status "$file") -eq 2 ]] || fail "trireme does not refuse $(cat "$file")"
  grep -qF "\"$file\"" bad.json || fail "the schema accepts $(cat "$file")"
done
[[ $failures -eq 0 ]] || exit 1
echo "all well"
