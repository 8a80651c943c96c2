#!/usr/bin/env bash
# The executable's output for a mistyped command, for help, and for completion: directly, through man, and in a real
# bash on a terminal.
#   command_line.sh SOURCE_FOLDER PATH_OF_trireme
set -uo pipefail
source_dir=$1 trireme=$2 failures=0 output=''
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# says STATUS TEXT ARGUMENTS...: checks the executable's status and a part of its output.
says() {
  local status=0
  output=$("$trireme" "${@:3}" 2>&1) || status=$?
  [[ $status -eq $1 ]] || fail "trireme ${*:3}: status $status, expected $1"
  [[ $output == *"$2"* ]] || fail "trireme ${*:3}: no '$2' in '$output'"
}

echo "for a misspelt name, the nearest name is suggested"
says 2 'chekc: unknown subcommand of trireme; did you mean check?' chekc x
says 2 'lst: unknown subcommand of trireme checkpoint; did you mean list?' checkpoint lst x
says 2 'did you mean trireme data inspect or trireme checkpoint inspect?' inspect
says 2 'the subcommands are train, check, ' qqq
says 2 '--outptu: unknown option of trireme data prepare; did you mean --output?' data prepare x --outptu=y
echo "for an option of another trainer, the corresponding option is suggested"
says 2 '--dry-run: not an option of trireme train; trireme check CONFIG --ranks N shows' train x --dry-run
says 2 '--num-layers: not an option of trireme train; --set model.layers=VALUE sets it' train x --num-layers 4
says 2 '--run.steps: not an option of trireme check; --set run.steps=VALUE sets it' check x --run.steps=4
says 2 '--num-epochs: not an option of trireme train; the closest setting is --set run.steps=VALUE (optimizer steps: ' \
  train x --num-epochs 3
says 2 '; the closest setting is --set model.tie_embeddings=true|false (the opposite: ' \
  train x --untie-embeddings-and-output-weights
says 2 '; the closest setting is --set parallel.zero=VALUE (the ZeRO stage, 0 to 2; ' train x --deepspeed ds.json
says 2 '; the closest setting is --set lr.wsd_decay_fraction=VALUE (with lr.rule wsd: ' \
  train x --lr_scheduler.decay_ratio 0.1
for pair in steps:run.steps tp:parallel.tp pp:parallel.pp dp:parallel.dp global-batch:data.global_batch lr:lr.peak; do
  says 2 "--${pair%:*}: not an option of trireme train; --set ${pair#*:}=VALUE sets it" train x "--${pair%:*}" 2
done
says 2 '; --set run.seed=VALUE or --set data.seed=VALUE sets it' train x --seed 5
for option in --nproc-per-node --nproc_per_node --num-gpus --ranks; do
  says 2 "$option: not an option of trireme train; start the ranks with srun or mpirun -n RANKS" train x "$option" 8
done
says 2 '--nnodes: not an option of trireme train; start ranks on several nodes with srun, or with mpirun' \
  train x --nnodes=2
says 2 '--master-addr: not an option of trireme train; the launcher, ' train x --master-addr node1
says 2 '; the closest setting is --set data.prefetch=VALUE (batches to read ahead' train x --num-workers 4
says 2 '--num-gpus: not an option of trireme check; --ranks sets the number' check x --num-gpus 8
for command in train check plan simulate 'bench step'; do
  # shellcheck disable=SC2086
  says 2 "--config: not an option of trireme $command; the config's path needs no option: trireme $command my.yaml" \
    $command --config x
done
says 2 'run.steps=5: unexpected argument of trireme train; --set run.steps=VALUE sets it' train x run.steps=5
says 2 '+model.optim.lr=1: unexpected argument of trireme train; --set lr.peak=VALUE sets it' train x +model.optim.lr=1
says 2 '=: unexpected argument of trireme train' train x =
says 2 '--tensor-model-parallel-size: not an option of trireme plan; --set parallel.tp=VALUE sets it' \
  plan x --tensor-model-parallel-size 2
says 2 '--micro-batch-size: not an option of trireme plan; --set data.micro_batch=VALUE sets it' \
  plan x --micro-batch-size 2
says 2 'parallel.tp 3 does not divide model.heads 40' plan "$source_dir/configs/gpt_13b.yaml" --ranks 8 \
  --cluster "$source_dir/configs/clusters/h100_nemo.yaml" --set parallel.tp=3
says 2 '--rows x can be combined only with --as, --cluster, --cluster-set and --json' simulate --rows x --ranks 8
says 2 '--rows x predicts the rows of this file and accepts no config; omit y' simulate y --rows x
says 2 'expected a CSV file as in configs/published/' simulate --rows nowhere.csv
says 2 'simulate needs --cluster FILE (see configs/clusters/), or --rows' simulate x
says 2 'simulate needs CONFIG, or --rows' simulate --cluster x
says 2 '--to 8: only --scaling, --startup and --report have' simulate x --cluster y --to 8
auto=(check "$source_dir/configs/llama_8b.yaml" --ranks 8 --no-data --set parallel.tp=1 --set parallel.pp=4
  --set parallel.schedule=auto --set parallel.recompute=selective)
says 0 'the latter needs 86.52 GiB of 75.46 GiB per rank' "${auto[@]}"
says 0 'schedule: 1f1b (parallel.schedule: auto' "${auto[@]}" --cluster "$source_dir/configs/clusters/h100.yaml"
says 0 'schedule: zb_h1 (parallel.schedule: auto' "${auto[@]}" --cluster "$source_dir/configs/clusters/h200.yaml"
# The cluster file's ranks per node replace the config's: check, simulate and plan say so.
for command in "check --no-data" simulate plan; do
  # shellcheck disable=SC2086
  says 0 "cluster.ranks_per_node: the config's 4 is replaced by 8, node.ranks of the cluster file" $command \
    "$source_dir/configs/llama_8b.yaml" --ranks 8 --cluster "$source_dir/configs/clusters/h100.yaml" \
    --set cluster.ranks_per_node=4 --set parallel.tp=4
done
# Only one suggestion is made at a time, and none that does not exist.
for pair in '--startup --scaling weak' '--startup --network' '--scaling weak --network' '--startup --schedules'; do
  # shellcheck disable=SC2086
  says 2 'excludes' simulate "$source_dir/configs/gpt_13b.yaml" --ranks 64 \
    --cluster "$source_dir/configs/clusters/h100_nemo.yaml" $pair
done
says 2 '--output /: this is a folder; name a file in it' plan nowhere.yaml --ranks 8 --cluster x --output /
says 2 '--output /nowhere/x.yaml: the folder /nowhere does not exist' plan nowhere.yaml --ranks 8 --cluster x \
  --output /nowhere/x.yaml
# If --set would not work, it is not suggested.
says 2 '--num-layers: not an option of trireme eval; model.layers comes from the checkpoint' \
  eval x --num-layers 4
says 2 '--max-steps: unknown option of trireme generate' generate x --max-steps 5
[[ $output != *--set* ]] || fail "generate takes no run.steps: $output"
says 2 '--max-new-tokens: not an option of trireme generate; --tokens sets their number' generate x --max-new-tokens 5
says 2 '--workers: not an option of trireme data prepare; --threads sets the number' \
  data prepare x --workers=4 --output y
says 2 '--num-layers: unknown option of trireme data prepare' data prepare x --num-layers 4 --output y
says 2 '--keep-last: 0 is not a whole number >= 1' checkpoint prune x --keep-last 0
says 2 '--top-k: 1.5 is not a whole number >= 0' generate x --top-k 1.5
says 2 '--temperature: nan is not a number from 0' generate x --temperature nan
says 2 '--max-shard-size: 0 is not a number above 0' checkpoint export x y --max-shard-size 0
says 2 '1048577 not in range' plan x --ranks 1048577 --cluster x
says 2 '1048577 not in range' simulate x --ranks 1048577 --cluster x
says 2 'y: unexpected argument of trireme check' check x y
says 2 'trireme checkpoint needs a subcommand: list, ' checkpoint
says 2 'trireme train: config is required' train
says 2 'see trireme generate --help' generate x --top-p 7
says 2 'trireme needs a subcommand' --json

echo "every subcommand has help, and the man page is valid"
says 0 'Usage: trireme data prepare' help data prepare
says 2 'trireme data prepair: no such command' help data prepair
"$trireme" help --man >"$folder/trireme.1" || fail "help --man"
if command -v man >/dev/null; then
  page=$(MANWIDTH=120 MANROFFOPT='-Wall' man --warnings -l "$folder/trireme.1" 2>"$folder/warnings")
  [[ ! -s $folder/warnings ]] || fail "man warns: $(head -5 "$folder/warnings")"
  man --warnings -l "$folder/trireme.1" 2>&1 >/dev/null | grep . && fail "man warns at its own width"
  for part in 'trireme data prepare' '--text-field TEXT=text' 'model.layers = 12' 'EXIT STATUS'; do
    [[ $page == *"$part"* ]] || fail "the page lacks '$part'"
  done
else
  echo "skipped: man is not installed"
fi
# Every subcommand of the help appears in the page.
for command in $("$trireme" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p'); do
  grep -q "^\.SS trireme $command\$" "$folder/trireme.1" || fail "the page lacks trireme $command"
done

echo "bash completes"
"$trireme" completion bash >"$folder/completion" || fail "completion bash"
if command -v shellcheck >/dev/null; then
  shellcheck "$folder/completion" || fail "shellcheck"
else
  echo "skipped: shellcheck is not installed"
fi
# Candidates from the function itself.
# shellcheck disable=SC1091
source "$folder/completion"
# completes LINE EXPECTED: checks the candidates at the end of the line.
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
completes 'trireme train x.yaml --set model.no' 'model.norm= model.norm_offset= model.norm_position= model.norm_eps='
completes 'trireme train x.yaml --set model.norm=' 'layernorm rmsnorm'
completes 'trireme train x.yaml --set model.bias=t' 'true'
completes 'trireme check x.yaml --get run.nam' 'run.name'
completes 'trireme train x.yaml --set=model.no' 'model.norm= model.norm_offset= model.norm_position= model.norm_eps='
completes 'trireme train x.yaml --set=model.norm=' 'layernorm rmsnorm'
completes 'trireme check x.yaml --get=run.nam' 'run.name'
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/} completes 'trireme train x.yaml --set=model.norm=r' '--set=model.norm=rmsnorm'
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/} completes 'trireme train x.yaml --set=model.norm' \
  '--set=model.norm= --set=model.norm_offset= --set=model.norm_position= --set=model.norm_eps='
completes 'trireme config new --model llama_8' 'llama_8b'
completes 'trireme config new --model=megascale_1' 'megascale_175b'
completes 'trireme checkpoint list ru' ''

# On a terminal bash itself replaces the words.
if command -v python3 >/dev/null; then
  python3 "$source_dir/tests/tree/type_in_bash.py" "$folder/completion" >"$folder/typed" 2>&1 ||
    fail "in a terminal: $(cat "$folder/typed")"
else
  echo "skipped: no python3 for a terminal"
fi

echo "a failed write of the output gives status 3"
config=$source_dir/configs/quickstart.yaml
while read -r arguments; do
  status=0
  # shellcheck disable=SC2086
  (cd "$folder" && "$trireme" $arguments >/dev/full 2>error) || status=$?
  [[ $status -eq 3 && $(<"$folder/error") == *"standard output"* ]] ||
    fail "trireme $arguments >/dev/full: status $status, $(<"$folder/error")"
done <<LINES
--help
--help-all
--version
--version --json
help train
help --man
train --help
completion bash
config new --model gpt2_124m --gpus 1
config diff $config $config
config diff $config $config --json
check $config --ranks 8 --no-data
check $config --ranks 8 --no-data --json
check $config --ranks 8 --no-data --get run.name
LINES

echo "no command prints control characters from files: C0, DEL, C1, overrides of direction, also as single bytes"
evil=$(printf 'a\033]0;x\007\033[2Jb\177c\302\233d\342\200\256e\233f')
mkdir -p "$folder/$evil" "$folder/run/checkpoints/$evil"
{
  printf '{"time":1,"attempt":"a","job":"","kind":"begin","rank":0,"host":"h","text":"","fields":{}}\n'
  text='a\u001b]0;x\u0007\u001b[2Jb\u007fc\u009bd\u202ee'
  for kind in failure hang exclusion exclude straggler drift end; do
    printf '{"time":%s,"attempt":"a","job":"%s","kind":"%s","rank":0,"host":"%s","text":"%s","fields":{"code":3,' \
      "$(date +%s)" "$text" "$kind" "$text" "$text"
    printf '"kind":"%s","quantity":"%s","what":"%s","node":"%s","why":"%s","until":9e9}}\n' \
      "$text" "$text" "$text" "$text" "$text"
  done
} >"$folder/run/events.jsonl"
echo "last $evil" >"$folder/run/log.txt"
obeyed='[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|(?<![\xc2-\xf4\x80-\xbf])[\x80-\xbf]'
while IFS='|' read -r -a arguments; do
  (cd "$folder" && NO_COLOR=1 timeout 300 "$trireme" "${arguments[@]}" >printed 2>&1 </dev/null)
  if LC_ALL=C grep -qaP "$obeyed" "$folder/printed"; then
    fail "trireme ${arguments[*]} prints: $(od -c "$folder/printed" | head -n 40)"
  fi
done <<LINES
$evil
check|$evil
check|x.yaml|--$evil
check|$config|--ranks|1|--set|$evil=1
check|$config|--ranks|1|--set|run.sample_prompt=$evil
status|run
status|run|--json
status|$evil
report|run|--text
report|run|--text|--time
report|$evil|--text
report|run|--time|--json
supervise|--nodes|run
checkpoint|list|run
checkpoint|list|run|--json
checkpoint|list|$evil
checkpoint|inspect|$evil
checkpoint|inspect|run/checkpoints/$evil
data|inspect|$evil
data|prepare|--output|o|$evil
train|$evil
timeline|$evil
LINES
[[ $(cd "$folder" && "$trireme" supervise --nodes run) == *"until"* ]] || fail "the excluded node is not listed"

[[ $failures -eq 0 ]] || exit 1
echo "all well"
