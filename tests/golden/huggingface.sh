#!/usr/bin/env bash
# Models to and from Hugging Face's transformers, nothing downloaded: huggingface.py.
# Environment: BUILD    the built tree (default: build)
#              PYTHON   an interpreter (default: python3) with torch and transformers; without them, it is skipped
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${BUILD:-$root/build}" && pwd) python=${PYTHON:-python3}
if ! "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
  echo "skipped: no transformers"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" "$here/huggingface.py" "$build/bin" "$root/slurm/mpirun" "$folder"
