#!/usr/bin/env bash
# `make run` builds in a new folder: without a GPU only the CPU backend, which it reports in one line. The other targets
# add the CUDA backend later, and a folder that was configured differently is not changed.
#   quick_start_build.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
# expect TARGET FOLDER OPTION: checks the option passed to CMake, "" for none.
expect() {
  local line
  line=$(make -n "$1" BUILD="$2" | grep -o -- "-G Ninja.* >")
  [[ $line =~ ^-G\ Ninja\ *"$3"\ *\>$ ]] || {
    echo "FAILED: make $1 in $2: CMake gets '$line', expected '$3'"
    failures=$((failures + 1))
  }
}
expect run "$folder/new" -DTRIREME_CUDA=GPU
expect build "$folder/new" ""
expect all "$folder/new" ""
mkdir "$folder/quick" "$folder/full"
echo "TRIREME_CUDA:STRING=GPU" >"$folder/quick/CMakeCache.txt"
echo "TRIREME_CUDA:STRING=OFF" >"$folder/full/CMakeCache.txt"
expect run "$folder/quick" ""
expect build "$folder/quick" -DTRIREME_CUDA=AUTO
expect all "$folder/quick" -DTRIREME_CUDA=AUTO
for target in run build all; do expect "$target" "$folder/full" ""; done

if ! compgen -G "/dev/nvidia[0-9]*" >/dev/null && [[ ! -e /dev/dxg ]]; then
  said=$(cmake -S . -B "$folder/cpu" -G Ninja -DTRIREME_CUDA=GPU -DBUILD_TESTING=OFF 2>&1 >/dev/null)
  [[ $(grep -c "NO CUDA BACKEND (this machine has no GPU" <<<"$said") -eq 1 ]] || {
    echo "FAILED: CMake does not report that the build has no CUDA backend: $said"
    failures=$((failures + 1))
  }
fi
exit "$failures"
