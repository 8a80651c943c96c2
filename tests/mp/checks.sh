# Sourced by the scripts of this folder, whose arguments are SOURCE_FOLDER PATH_OF_trireme: checks that count failures,
# a temporary working folder, and text to train on. A script ends with `finish`.
# shellcheck shell=bash
set -u
source_dir=$1 trireme=$2 failures=0 output=''
export CUDA_VISIBLE_DEVICES= # with run.device auto, more ranks than GPUs would be an error; these checks use the CPU
mpirun=$source_dir/slurm/mpirun
# Seconds until something missing counts as a hang. Waits end as soon as their condition holds, so the limit costs
# nothing; a slow, shared machine must not exceed it.
timeout_s=400
job='' # the process id of mpirun, set by `start`
folder=$(mktemp -d)
# Memory that ranks share and their flight recorders: what killed ranks leave behind is removed with the test.
shared_memory=$(mktemp -d /dev/shm/trireme-test.XXXXXX 2>/dev/null || mktemp -d)
export TRIREME_BLACK_BOXES=$shared_memory
export OMPI_MCA_btl_vader_backing_directory=$shared_memory OMPI_MCA_osc_sm_backing_directory=$shared_memory
clean_up() {
  # A subshell that is ended right after its start still has the traps of this shell.
  [[ $BASHPID == "$$" ]] || return 0
  # mpirun ends its ranks.
  [[ -z $job ]] || ! kill -TERM "$job" 2>/dev/null || wait "$job" 2>/dev/null
  rm -rf "$folder" "$shared_memory"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
cd "$folder" || exit 1

fail() {
  echo "FAILED: $1"
  [[ $# -gt 1 ]] && printf '%s\n' "$2"
  failures=$((failures + 1))
}
# run STATUS COMMAND...: checks the status and stores the output in $output.
run() {
  local expected=$1 status=0
  shift
  output=$(timeout "$timeout_s" "$@" 2>&1) || status=$?
  [[ $status -eq $expected ]] || fail "exit status $status, expected $expected: $*" "$output"
}
has() { [[ $output == *"$1"* ]] || fail "output lacks '$1'" "$output"; }
lacks() { [[ $output != *"$1"* ]] || fail "output has '$1'" "$output"; }

# Prints text to train on.
bottles() {
  for i in $(seq 400); do
    echo "$i green bottles hanging on the wall, and if $i green bottles should accidentally fall"
  done
}
# make_text: creates text.txt, and from it the token files text.bin and text.idx.
make_text() {
  bottles >text.txt
  run 0 "$trireme" data prepare --format text --tokenizer bytes --output text text.txt
}

# make_chat: creates the token files chat.bin, chat.idx and chat.mask of conversations, of which a small part is trained.
make_chat() {
  bottles | sed 's/\(.*\), and \(.*\)/{"prompt": "\1", "completion": "\2"}/' >chat.jsonl
  cat >chat.yaml <<'YAML'
separator: "|"
roles:
  user: {prefix: "<", suffix: ">"}
  assistant: {prefix: "(", suffix: ")", train: true}
YAML
  run 0 "$trireme" data prepare --chat chat.yaml --tokenizer bytes --output chat chat.jsonl
}

# settings_of DIR SETTINGS...: sets $settings to the command-line options for tiny.yaml.
settings_of() {
  settings=(--set "run.dir=$1")
  shift
  for setting in "$@"; do settings+=(--set "$setting"); done
}
# train STATUS DIR RANKS SETTINGS...
train() {
  local status=$1 ranks=$3 settings
  settings_of "$2" "${@:4}"
  run "$status" "$mpirun" -n "$ranks" "$trireme" train tiny.yaml "${settings[@]}"
}
# start DIR RANKS SETTINGS...: the same in the background, as process $job, with its output in DIR.txt.
start() {
  local settings
  settings_of "$1" "${@:3}"
  "$mpirun" -n "$2" "$trireme" train tiny.yaml "${settings[@]}" >"$1.txt" 2>&1 &
  job=$!
}
# end_of DIR STATUS: waits for that process; stores its output in $output.
end_of() {
  # No subshell watches the time: one that gets its signal right after its start ignores it, and keeps the test's output
  # open until its own end.
  local status=0 deadline=$((SECONDS + timeout_s))
  while kill -0 "$job" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.05; done
  ! kill -TERM "$job" 2>/dev/null || echo "$1: ended after $timeout_s s"
  wait "$job" || status=$?
  job=''
  output=$(<"$1.txt")
  [[ $status -eq $2 ]] || fail "$1: exit status $status, expected $2" "$output"
}
# until_true COMMAND...: fails if the command has not succeeded within $timeout_s seconds, or $job ended without it.
until_true() {
  local deadline=$((SECONDS + timeout_s)) ended=0
  until "$@"; do
    if ((ended || SECONDS >= deadline)); then
      fail "timed out waiting for: $*" "$(tail -n 40 ./*.txt)"
      return 1
    fi
    # Output written just before the end still counts.
    [[ -z $job ]] || kill -0 "$job" 2>/dev/null || ended=1
    sleep 0.1
  done
}
steps_done() { [[ -s $1/metrics.jsonl && $(wc -l <"$1/metrics.jsonl") -ge $2 ]]; }
# pid_of RANK: prints the process of a rank of the job, found by the environment that mpirun set.
pid_of() {
  local pid
  for pid in $(pgrep -P "$job"); do
    tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$pid"
  done
}
# curve DIR: prints step, loss and gradient norm, without steps that were lost at a restart.
curve() {
  sed -n 's/^{"restart":.*"step":\([0-9]*\),.*/restart \1/p
    s/^{"step":\([0-9]*\),.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl" |
    awk '$1 == "restart" {for (step in row) if (step + 0 > $2 + 0) delete row[step]; next}
      {if ($1 in row) print "twice: " $0; row[$1] = $0} END {for (step in row) print row[step]}' | sort -n
}

finish() {
  # A script that uses the names of these folders for something else would leave them.
  [[ -d $folder && -d $shared_memory ]] || fail "no folder: folder=$folder shared_memory=$shared_memory"
  [[ $failures -eq 0 ]] && echo "all well"
  exit "$failures"
}
