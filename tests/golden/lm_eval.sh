#!/usr/bin/env bash
# Runs lm-evaluation-harness on an exported model without downloads: lm_eval.py.
# Environment: BUILD    the built tree (default: build)
#              PYTHON   an interpreter with torch and lm-eval (default: the first that tests/python_with finds); without
#                       them, it is skipped
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${BUILD:-$root/build}" && pwd)
if ! python=$("$root/tests/python_with" torch lm_eval transformers accelerate); then
  echo "skipped: no lm_eval"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -B "$here/lm_eval.py" "$build/bin" "$folder"
