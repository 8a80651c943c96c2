#!/usr/bin/env bash
# Checks the sources without running the program's tests: `make lint`. If a tool is not installed, it is named and its
# check is skipped.
#   lint.sh BUILD_DIR         BUILD_DIR/bin/trireme and BUILD_DIR/compile_commands.json exist
# Environment: TIDY            what clang-tidy checks: changed (default): the lines changed since LINT_BASE, for at most
#                              TIDY_SECONDS; all: every file; none
#              LINT_BASE       a commit (default: HEAD~1)
#              TIDY_SECONDS    (default: 120)
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=$1 failed=0
export LC_ALL=C.UTF-8

check() { # NAME COMMAND...
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "lint: $name: ok"
  else
    echo "$output" | head -60
    echo "lint: $name: FAILED"
    failed=1
  fi
}
have() { # NAME TOOL
  command -v "$2" >/dev/null && return
  echo "lint: $1: skipped, $2 is not installed"
  return 1
}

# Other versions of clang-format break lines differently.
format() { git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror; }
if have format clang-format; then
  if clang-format --version | grep -q ' version 14\.'; then
    check format format
  else
    echo "lint: format: skipped, clang-format is not version 14"
  fi
fi

shells() { git ls-files | xargs grep -lIE '^#!.*\bbash$' | xargs shellcheck --severity=error; }
have shell shellcheck && check shell shells

# Excludes documents, whose tables are wide, generated files, and test scripts, which keep a check on one line.
columns() {
  ! git ls-files | grep -vE '\.(md|svg|json|csv|tsv)$|^tests/.*\.(sh|py|txt)$|^tests/[^.]*$' |
    xargs grep -nIE '^.{121,}' | cut -c1-100
}
check columns columns

# Checks for words that are not the field's vocabulary: the table is in the script.
words() { python3 -B tests/tree/retired_words.py --test && python3 -B tests/tree/retired_words.py .; }
check words words

# Excludes measurements.
lengths() {
  git ls-files '*.md' | grep -v /measurements/ | xargs wc -w | awk '
    { most = $2 == "README.md" ? 1200 : $2 ~ /\/README\.md$/ ? 400 : 20000 }
    $1 > most { print $2 ": " $1 " words; at most " most; failed = 1 }
    END { exit failed }'
}
check "lengths of documents" lengths

commands() { python3 -B tests/tree/readme_commands.py . "$build/bin/trireme"; }
check "commands of documents" commands

# Prints the changed lines as clang-tidy's --line-filter: older lines may have warnings that no commit has to remove.
changed_lines() { # BASE
  git diff --no-ext-diff --src-prefix=a/ --dst-prefix=b/ -U0 --diff-filter=d "$1" -- '*.cpp' '*.h' 2>/dev/null | awk '
    /^\+\+\+ b\// { name = substr($2, 3) }
    /^@@ / {
      parts = split(substr($3, 2), at, ",")
      if (parts == 1) at[2] = 1
      if (at[2] > 0) lines[name] = lines[name] (lines[name] == "" ? "" : ",") "[" at[1] "," at[1] + at[2] - 1 "]"
    }
    END {
      for (name in lines) all = all (all == "" ? "" : ",") "{\"name\":\"" name "\",\"lines\":[" lines[name] "]}"
      if (all != "") print "[" all "]"
    }'
}

# clang cannot read the headers that g++ has precompiled. It derives the commands of files that are compiled together
# from those of others.
tidy() { # LINE_FILTER SECONDS FILES...
  local filter=$1 limit=$2 folder checked status=0
  shift 2
  folder=$(mktemp -d) || return
  sed -E 's/ -Winvalid-pch -include [^ ]*//' "$build/compile_commands.json" >"$folder/compile_commands.json"
  # shellcheck disable=SC2016
  printf '%s\n' "$@" | timeout "$limit" xargs -P "$(nproc)" -n 1 sh -c '
    if clang-tidy -p "$0" --quiet --warnings-as-errors="*" --extra-arg=-Wno-unknown-warning-option \
      --extra-arg=-Wno-unused-command-line-argument \
      --line-filter="$1" "$2"; then echo "$2" >>"$0/good"; else echo "$2" >>"$0/bad"; fi' "$folder" "$filter"
  touch "$folder/good" "$folder/bad"
  [[ ! -s $folder/bad ]] || status=1
  checked=$(cat "$folder/good" "$folder/bad" | wc -l)
  ((checked == $#)) || echo "lint: tidy: $(($# - checked)) of $# files were not checked within $limit s" >&3
  rm -rf "$folder"
  return $status
}
exec 3>&1
sources=() filter='' limit=0
case ${TIDY:-changed} in
  all) mapfile -t sources < <(git ls-files 'app/*.cpp' 'lib/*.cpp' 'io/*.cpp' 'kernels/*.cpp') ;;
  changed)
    filter=$(changed_lines "${LINT_BASE:-HEAD~1}") limit=${TIDY_SECONDS:-120}
    [[ -z $filter ]] ||
      mapfile -t sources < <(git diff --name-only --diff-filter=d "${LINT_BASE:-HEAD~1}" -- '*.cpp')
    ;;
esac
# The files that this build compiles, alone or together with others.
known=$(
  sed -n 's/.*"file": "\(.*\)".*/\1/p' "$build/compile_commands.json"
  find "$build" -name 'unity_*.cxx' -exec sed -n 's/^#include "\(.*\)".*/\1/p' {} +
)
compiled=()
for file in "${sources[@]}"; do
  grep -q "/$file\$" <<<"$known" && compiled+=("$file")
done
if [[ ${#compiled[@]} -gt 0 ]] && have tidy clang-tidy; then
  if clang-tidy --version | grep -q ' version 14\.'; then
    check "tidy of ${#compiled[@]} files" tidy "$filter" "$limit" "${compiled[@]}"
  else
    echo "lint: tidy: skipped, clang-tidy is not version 14"
  fi
fi

exit $failed
