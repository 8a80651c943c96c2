#!/usr/bin/env bash
# Exports models to and imports them from Hugging Face's transformers without downloads: huggingface.py.
# Environment: BUILD    the built tree (default: build)
#              PYTHON   an interpreter with torch and transformers (default: the first that tests/python_with finds);
#                       without them, it is skipped
#              TRIREME_EXPECT_CLIENTS  if set, missing packages are a failure
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${BUILD:-$root/build}" && pwd)
if ! python=$("$root/tests/python_with" torch transformers safetensors); then
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || { echo "TRIREME_EXPECT_CLIENTS is set, but transformers or torch is missing" >&2; exit 1; }
  echo "skipped: no transformers"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" "$here/huggingface.py" "$build/bin" "$root/slurm/mpirun" "$folder"
