#!/usr/bin/env bash
# Checks the executable's --version, and that the tree installed by `cmake --install` works.
#   install.sh SOURCE_FOLDER BUILD_FOLDER PATH_OF_trireme VERSION
set -euo pipefail
source_dir=$1 build=$2 trireme=$3 version=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}

echo "--version names the commit, the compiler and the libraries in use"
output=$("$trireme" --version)
echo "$output"
commit=unknown
if [[ -e $source_dir/.git ]] && command -v git >/dev/null; then
  commit=$(git -C "$source_dir" rev-parse --short=12 HEAD 2>/dev/null) || commit=unknown
fi
[[ $output =~ ^"trireme $version, commit "[0-9a-f]{12} || $commit == unknown ]] || fail "no commit"
[[ $commit != unknown || $output == "trireme $version, commit unknown"* ]] || fail "--version names a commit outside a repository"
# row NAME: prints the text after it.
row() { sed -n "s/^$(printf %-10s "$1") //p" <<<"$output"; }
[[ $(row 'C++') =~ [0-9]+\.[0-9]+ ]] || fail "no compiler"
[[ $(row MPI) == "Open MPI v$(mpirun --version | sed -n 's/.*(Open MPI) //p')" ]] || fail "the MPI differs from that of mpirun"
[[ $(row HDF5) =~ ^1\.[0-9]+\.[0-9]+$ ]] || fail "no HDF5"
[[ $(row UCX) == none || $(row UCX) =~ ^[0-9]+\.[0-9]+ ]] || fail "UCX"
for name in 'CUDA C++' CUDA NCCL cuBLAS; do
  if grep -q '^TRIREME_CUDA:STRING=OFF' "$build/CMakeCache.txt"; then
    [[ $(row "$name") == none ]] || fail "$name in a build without CUDA"
  else
    [[ $(row "$name") == none || $(row "$name") =~ [0-9]+\.[0-9]+ ]] || fail "no version of $name"
  fi
done

echo "--version --json has the same data and the libraries of the build"
if command -v python3 >/dev/null; then
  "$trireme" --version --json | python3 -c '
import json, re, sys
said = json.load(sys.stdin)
text = sys.argv[1]
assert text.startswith("trireme %s, commit %s" % (said["version"], said["commit"])), said
assert said["modified"] == (", modified" in text.splitlines()[0]), said
libraries = said["libraries"]
assert list(libraries) == ["MPI", "UCX", "HDF5", "CUDA", "driver", "NCCL", "cuBLAS", "cuDNN"], libraries
for name, versions in libraries.items():
    row = re.search("^%-10s (.*)$" % name, text, re.M).group(1)
    assert row.startswith(versions["runs"] or "none"), (name, row, versions)
for name in "MPI", "HDF5":
    assert re.fullmatch(r"\d+\.\d+\.\d+", libraries[name]["built_with"]), libraries[name]
' "$output" || fail "--version --json"
fi

echo "the version's data change with the commit and with a changed file, and not otherwise"
data=$folder/version_data.h tree=$folder/tree
mkdir "$tree"
write() {
  cmake -DSOURCE="$tree" -DOUTPUT="$data" -DVERSION=1.2.3 -DCXX_COMPILER=cc -DCUDA_COMPILER=none -DBUILD=Release \
    -P "$source_dir/app/version.cmake"
}
expect() { grep -qx "#define $1" "$data" || fail "no '$1' in" "$(cat "$data")"; }
write
expect 'TRI_COMMIT "unknown"' # as from a tarball
expect 'TRI_VERSION "1.2.3"'
expect 'TRI_BUILT_MPI "none"'
if command -v git >/dev/null; then
  in_tree() { git -C "$tree" -c user.name=a -c user.email=a@b "$@"; }
  in_tree init -q
  echo 1 >"$tree/file"
  in_tree add file
  in_tree commit -qm one
  write
  expect "TRI_COMMIT \"$(in_tree rev-parse --short=12 HEAD)\""
  expect 'TRI_COMMIT_MODIFIED 0'
  touch -d '1 hour ago' "$data"
  before=$(stat -c %Y "$data")
  write
  [[ $(stat -c %Y "$data") == "$before" ]] || fail "rewritten although nothing has changed"
  echo 2 >"$tree/file"
  write
  expect 'TRI_COMMIT_MODIFIED 1'
fi

echo "the install tree"
cmake --install "$build" --prefix "$folder/usr" >"$folder/log" 2>&1 || fail "cmake --install" "$(cat "$folder/log")"
"$folder/usr/bin/trireme" --version >/dev/null || fail "the installed executable"
share=$folder/usr/share/trireme
for file in slurm/train.sbatch slurm/submit.sh slurm/env.sh slurm/mpirun configs/quickstart.yaml configs/quickstart.sh; do
  [[ -s $share/$file ]] || fail "$file is not installed"
done
[[ -x $share/slurm/submit.sh && -x $share/slurm/mpirun && -x $share/configs/quickstart.sh ]] || fail "some scripts are not executable"
grep -q '^\.TH TRIREME 1' "$folder/usr/share/man/man1/trireme.1" || fail "no man page"
bash -n "$folder/usr/share/bash-completion/completions/trireme" || fail "bash's completion"
grep -q '^complete .* trireme$' "$folder/usr/share/bash-completion/completions/trireme" || fail "bash's completion"
while read -r file; do
  grep -qxF "$file" "$build/install_manifest.txt" || fail "make uninstall would leave $file"
done < <(find "$folder/usr" -type f)
[[ ! -e $folder/usr/include && ! -e $share/slurm/install-packages ]] || fail "files are installed that users do not need: $(find "$folder/usr")"
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
[[ $("$folder/usr/bin/trireme" check "$share/configs/quickstart.yaml" --ranks 8 --get run.name) == quickstart ]] ||
  fail "the installed executable and config"

echo "make uninstall removes all files and its own folders"
make -s -C "$source_dir" BUILD="$build" uninstall || fail "make uninstall"
left=$(find "$folder/usr" -type f -o -name trireme)
[[ -z $left ]] || fail "make uninstall leaves $left"

echo "CMake accepts the presets"
cd "$source_dir"
for kind in configure build test; do
  [[ $(cmake "--list-presets=$kind" | grep -oE '"(cpu|cuda|tsan|asan)"' | tr -d '\n') == '"cpu""cuda""tsan""asan"' ]] ||
    fail "cmake --list-presets=$kind"
done
# Checks that each names an option of this tree, without the minute that a configuration takes.
while read -r option; do
  grep -q "set($option " CMakeLists.txt || fail "CMakePresets.json: CMakeLists.txt has no $option"
done < <(grep -oE 'TRIREME_[A-Z_]+' CMakePresets.json | sort -u)
echo "all well"
