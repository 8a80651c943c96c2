#!/usr/bin/env bash
# lm-evaluation-harness on an exported model, nothing downloaded: lm_eval.py.
# Environment: BUILD    the built tree (default: build)
#              PYTHON   an interpreter (default: python3) with torch and lm-eval; without them, it is skipped
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${BUILD:-$root/build}" && pwd) python=${PYTHON:-python3}
if ! "$python" -c 'import torch, lm_eval, transformers' 2>/dev/null; then
  echo "skipped: no lm_eval"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -B "$here/lm_eval.py" "$build/bin" "$folder"
