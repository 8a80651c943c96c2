#!/usr/bin/env bash
# Runs AutoTokenizer, of the PyPI package transformers, on exported folders: auto_tokenizer.py.
#   auto_tokenizer.sh PATH_OF_trireme
# Environment: TRIREME_TEST_PYTHON     an interpreter with transformers and numpy (default: PYTHON, or
#                                      python3); make clients installs it
#              TRIREME_EXPECT_CLIENTS  if set, missing packages are a failure
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${TRIREME_TEST_PYTHON:-${PYTHON:-python3}}
if ! "$python" -c 'import numpy, transformers' 2>/dev/null; then
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || { echo "TRIREME_EXPECT_CLIENTS is set, but transformers or numpy is missing" >&2; exit 1; }
  echo "skipped: no transformers"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -B "$here/auto_tokenizer.py" "$1" "$folder"
