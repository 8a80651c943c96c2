#!/usr/bin/env bash
# What the executable says to who mistypes a command, asks for help, or presses the tabulator: by its own words, by man,
# and by a real bash on a terminal.
#   command_line.sh SOURCE_FOLDER PATH_OF_trireme
set -uo pipefail
source_dir=$1 trireme=$2 failures=0 output=''
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# says STATUS TEXT ARGUMENTS...: the executable's status, and a part of what it says.
says() {
  local status=0
  output=$("$trireme" "${@:3}" 2>&1) || status=$?
  [[ $status -eq $1 ]] || fail "trireme ${*:3}: status $status, expected $1"
  [[ $output == *"$2"* ]] || fail "trireme ${*:3}: no '$2' in '$output'"
}

echo "a misspelt name is answered with the nearest"
says 2 'chekc: unknown subcommand of trireme; did you mean check?' chekc x
says 2 'lst: unknown subcommand of trireme checkpoint; did you mean list?' checkpoint lst x
says 2 'did you mean trireme data inspect or trireme checkpoint inspect?' inspect
says 2 'there are train, check, ' qqq
says 2 '--outptu: unknown option of trireme data prepare; did you mean --output?' data prepare x --outptu=y
says 2 '--dry-run: no option of trireme train; trireme check CONFIG --ranks N says' train x --dry-run
says 2 '--num-layers: no option of trireme train; --set model.layers=VALUE sets it' train x --num-layers 4
says 2 '--run.steps: no option of trireme check; --set run.steps=VALUE sets it' check x --run.steps=4
says 2 '--workers: no option of trireme data prepare; --threads says how many' data prepare x --workers=4 --output y
says 2 'y: trireme check takes no such argument' check x y
says 2 'trireme checkpoint needs a subcommand: list, ' checkpoint
says 2 'trireme train: config is required' train
says 2 'trireme generate --help says more' generate x --top-p 7
says 2 'trireme needs a subcommand' --json

echo "help of any subcommand, and the page for man"
says 0 'Usage: trireme data prepare' help data prepare
says 2 'trireme data prepair: no such command' help data prepair
"$trireme" help --man >"$folder/trireme.1" || fail "help --man"
if command -v man >/dev/null; then
  page=$(MANWIDTH=120 MANROFFOPT='-Wall' man --warnings -l "$folder/trireme.1" 2>"$folder/warnings")
  [[ ! -s $folder/warnings ]] || fail "man warns: $(head -5 "$folder/warnings")"
  for part in 'trireme data prepare' '--text-field TEXT=text' 'model.layers = 12' 'EXIT STATUS'; do
    [[ $page == *"$part"* ]] || fail "the page lacks '$part'"
  done
else
  echo "skipped: no man here"
fi
# Every subcommand of the help stands in the page.
for command in $("$trireme" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p'); do
  grep -q "^\.SS trireme $command\$" "$folder/trireme.1" || fail "the page lacks trireme $command"
done

echo "bash completes"
"$trireme" completion bash >"$folder/completion" || fail "completion bash"
if command -v shellcheck >/dev/null; then
  shellcheck "$folder/completion" || fail "shellcheck"
else
  echo "skipped: no shellcheck here"
fi
# The answers, from the function itself.
# shellcheck disable=SC1091
source "$folder/completion"
# completes LINE EXPECTED: the candidates at the end of the line.
completes() {
  local COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  _trireme
  [[ "${COMPREPLY[*]}" == "$2" ]] || fail "'$1' completes to '${COMPREPLY[*]}', expected '$2'"
}
completes 'trireme che' 'check checkpoint'
completes '/some/where/trireme checkpoint ve' 'verify'
completes 'trireme data prepare --form' '--format'
completes 'trireme data prepare --format ' 'auto text lines jsonl'
completes 'trireme data prepare --format=js' 'jsonl'
completes 'trireme train x.yaml --set model.no' 'model.norm= model.norm_eps='
completes 'trireme train x.yaml --set model.norm=' 'layernorm rmsnorm'
completes 'trireme train x.yaml --set model.bias=t' 'true'
completes 'trireme check x.yaml --get run.nam' 'run.name'
completes 'trireme checkpoint list ru' ''

# A terminal, on which bash itself replaces the words.
if command -v python3 >/dev/null; then
  python3 "$source_dir/tests/tree/type_in_bash.py" "$folder/completion" >"$folder/typed" 2>&1 ||
    fail "in a terminal: $(cat "$folder/typed")"
else
  echo "skipped: no python3 for a terminal"
fi

[[ $failures -eq 0 ]] || exit 1
echo "all well"
