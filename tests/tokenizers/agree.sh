#!/usr/bin/env bash
# Compares trireme's tokens with those of the PyPI package `tokenizers`: agree.py.
#   agree.sh PATH_OF_trireme
# Environment: TRIREME_TEST_PYTHON     an interpreter with tokenizers and numpy, as installed by make clients (default:
#                                      PYTHON, or python3)
#              TRIREME_EXPECT_CLIENTS  if set, missing packages are a failure
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${TRIREME_TEST_PYTHON:-${PYTHON:-python3}}
if ! "$python" -c 'import numpy, tokenizers' 2>/dev/null; then
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || { echo "TRIREME_EXPECT_CLIENTS is set, but tokenizers or numpy is missing" >&2; exit 1; }
  echo "skipped: no tokenizers"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -B "$here/agree.py" "$1" "$folder" --megabytes 0.6
