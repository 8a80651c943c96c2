#!/usr/bin/env bash
# Checks the sources without running the program's tests: `make lint`. If a tool is not installed, it is named and its
# check is skipped.
#   lint.sh BUILD_DIR         BUILD_DIR/bin/trireme and BUILD_DIR/compile_commands.json exist
# Environment: TIDY         files for clang-tidy: none (default), changed (since LINT_BASE), all
#              LINT_BASE    a commit (default: HEAD~1)
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

commands() { python3 -B tests/tree/readme_commands.py . "$build/bin/trireme"; }
check "commands of documents" commands

# clang cannot read the headers that g++ has precompiled.
tidy() { # FILES...
  local commands status
  commands=$(mktemp -d) || return
  sed -E 's/ -Winvalid-pch -include [^ ]*//' "$build/compile_commands.json" >"$commands/compile_commands.json"
  printf '%s\n' "$@" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$commands" --quiet --warnings-as-errors='*'
  status=$?
  rm -rf "$commands"
  return $status
}
case ${TIDY:-none} in
  all) mapfile -t sources < <(git ls-files 'app/*.cpp' 'lib/*.cpp' 'io/*.cpp' 'kernels/*.cpp') ;;
  changed) mapfile -t sources < <(git diff --name-only --diff-filter=d "${LINT_BASE:-HEAD~1}" -- '*.cpp' 2>/dev/null) ;;
  none) sources=() ;;
esac
compiled=()
for file in "${sources[@]}"; do
  grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json" && compiled+=("$file")
done
if [[ ${#compiled[@]} -gt 0 ]] && have tidy clang-tidy; then check "tidy of ${#compiled[@]} files" tidy "${compiled[@]}"; fi

exit $failed
