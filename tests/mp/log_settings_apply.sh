#!/usr/bin/env bash
# The destinations of a run's messages: metrics.log, metrics.log_ranks, --quiet, colours; and UCX prints no warning per
# rank about missing GPUs on a CPU node.
#   log_settings_apply.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

make_text
cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 2, sample_tokens: 0, eval_batches: 0, device: cpu}
model: {layers: 2, hidden: 32, heads: 2, vocab: 257, seq_len: 32, norm: rmsnorm, bias: false}
data: {sources: [text], global_batch: 4}
YAML
# of_file PATH: prints its lines without their times.
of_file() { sed -E 's/^20[0-9-]+ [0-9:.]+ //' "$1"; }

echo "info is the default: rank 0's lines on the terminal and in log.txt"
train 0 info 2
has "step 2/2"
lacks "start-up: config done"
grep -q "step 2/2" info/log.txt || fail "no step in log.txt"
[[ ! -e info/log ]] || fail "files of ranks that were not requested"

echo "warn omits info lines"
train 0 warn 2 metrics.log=warn
lacks "step 2/2"
[[ $(grep -c "step 2/2" warn/log.txt) == 0 ]] || fail "a step in log.txt" "$(cat warn/log.txt)"
steps=$(grep -c '"grad_norm"' warn/metrics.jsonl)
[[ $steps == 2 ]] || fail "metrics.log_level must not change metrics.jsonl" "$(cat warn/metrics.jsonl)"

echo "debug adds lines, and log_ranks adds a file per rank"
train 0 debug 2 metrics.log=debug metrics.log_ranks=true
has "start-up: config done"
for rank in 0 1; do
  file=debug/log/rank_0000$rank.txt
  [[ -s $file ]] || fail "no $file"
  of_file "$file" | grep -q "^start-up: .* done after" || fail "$file lacks this rank's start" "$(cat "$file")"
done
of_file debug/log/rank_00000.txt | grep -q "^step 2/2" || fail "rank 0's own file lacks its steps"

echo "quiet: nothing on the terminal, everything in log.txt"
settings_of quiet
run 0 "$mpirun" -n 2 "$trireme" train tiny.yaml --quiet "${settings[@]}"
[[ -z $output ]] || fail "--quiet prints" "$output"
grep -q "step 2/2" quiet/log.txt || fail "no step in log.txt"

echo "on a terminal, only warnings and errors have colours, unless NO_COLOR is set"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if command -v python3 >/dev/null; then
  on_terminal() { python3 -c 'import os, pty, sys; os._exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@"; }
  settings_of colours
  command=("$trireme" train tiny.yaml "${settings[@]}" --set checkpoint.every_minutes=0)
  coloured() { grep -E $'\e\\[[0-9]+m' <<<"$output"; }
  output=$(TERM=xterm on_terminal "${command[@]}")
  coloured | grep -q 'warning: ' || fail "a warning on a terminal has no colour" "$output"
  ! coloured | grep -v 'warning: ' || fail "lines other than warnings have colours"
  rm -r colours
  output=$(TERM=xterm NO_COLOR=1 on_terminal "${command[@]}")
  [[ $output == *"step 2/2"* && -z $(coloured) ]] || fail "colours with NO_COLOR" "$output"
  output=$(TERM=xterm on_terminal "$trireme" eval nowhere)
  coloured | grep -q 'nowhere: ' || fail "an error on a terminal has no colour" "$output"
else
  echo "skipped: no python3 for a terminal"
fi
[[ $(cat info/log.txt) != *$'\e'* ]] || fail "colours in log.txt"

echo "with --quiet, eval and generate print only the result"
run 0 "$mpirun" -n 2 "$trireme" eval info --quiet
[[ $output == *": loss "*" tokens)" && $(wc -l <<<"$output") == 1 ]] || fail "expected only the result" "$output"
run 0 "$trireme" eval info
has "eval 100 %"
run 0 "$trireme" generate info --prompt green --tokens 3 --quiet
[[ $output == green* ]] || fail "expected only the text" "$output"
run 0 "$trireme" generate info --prompt green --tokens 3
[[ $output != green* ]] || fail "without --quiet, expected more than the text" "$output"

echo "slurm/env.sh causes no warning of UCX on a machine without a GPU"
if [[ -e /dev/nvidiactl ]]; then
  echo "skipped: there is a GPU"
else
  # shellcheck disable=SC2016
  run 3 bash -c 'source "$1/slurm/env.sh"; shift; exec "$@"' - "$source_dir" "$mpirun" -n 2 "$trireme" eval nowhere
  has "nowhere: no such folder"
  lacks "transport 'cuda' is not available"
fi
finish
