# Sourced by the tests of this folder: a private cluster in a temporary folder, and functions for jobs.
# shellcheck shell=bash
# Set by the test: CLUSTER_NODES, and before `start`: config, steps, every. By start: job, run_dir, log.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# Seconds until a missing event counts as a failure, and until all of the script's events must have happened. Waits end
# with the event, so these limits cost nothing; a slow, shared machine must not exceed them.
timeout_s=900 limit=3300
# Also the time to save a checkpoint after a signal, and the time that ranks may outlive the first that exited; cases
# that need one of these to expire set their own.
export DRAIN_SECONDS=900 STRAGGLER_SECONDS=300
# Uses the plain requeue, unless a test sets another value.
export SUPERVISE=0

for tool in munged slurmctld slurmd sbatch srun scontrol; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: $tool is not installed (Debian, Ubuntu: munge slurmctld slurmd slurm-client)"
    exit 77
  fi
done

work=$(mktemp -d /tmp/trireme-slurm.XXXXXX)
chmod 755 "$work"
export CLUSTER_DIR=$work/cluster CLUSTER_NODES CLUSTER_QUIET=${CLUSTER_QUIET:-0} TRIREME_ROOT=$work/root
mkdir "$TRIREME_ROOT"
cluster=$here/cluster.sh
# What killed ranks leave in shared memory, and their flight recorders, are removed with the test.
shared=$(mktemp -d /dev/shm/trireme-slurm.XXXXXX 2>/dev/null || mktemp -d)
chmod 755 "$shared"
export TRIREME_BLACK_BOXES=$shared
export OMPI_MCA_btl_vader_backing_directory=$shared OMPI_MCA_osc_sm_backing_directory=$shared
background=() # processes of this script
clean_up() {
  [[ $BASHPID == "$$" ]] || return 0 # a subshell that is ended right after its start still has the traps of this shell
  ((${#background[@]} == 0)) || kill "${background[@]}" 2>/dev/null || true
  "$cluster" stop >/dev/null 2>&1 || true
  rm -rf "$shared"
  if [[ ${KEEP:-0} == 1 ]]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

fail() {
  echo "FAILED: $*"
  [[ ${job:-0} == 0 ]] || scontrol show job --oneliner "$job" || true
  squeue -o '%i %j %T %r %N' || true
  sinfo -N -o '%N %P %T %E' || true
  tail -n 40 "$run_dir"/slurm-*.log 2>/dev/null || true
  grep -hE "error|fatal|JobId=${job:-0}( |$)" "$CLUSTER_DIR"/log/slurmctld.log | tail -n 40 || true
  exit 1
}
# wait_for PROCESS: waits for a process of `background`, and returns its status. Then the id may be another process'.
wait_for() {
  local status=0 at
  wait "$1" || status=$?
  for at in "${!background[@]}"; do
    [[ ${background[at]} != "$1" ]] || unset "background[at]"
  done
  return "$status"
}
# until_true WHAT COMMAND...
until_true() {
  local what=$1 deadline=$((SECONDS + timeout_s))
  shift
  until "$@"; do
    ((SECONDS < deadline && SECONDS < limit)) || fail "timed out waiting for: $what"
    sleep 0.5
  done
}
# begin_training: starts the cluster, and prepares data and the config of an endless training; skips the test if srun
# starts no ranks. Sets steps, every and config.
begin_training() {
  steps='' every=25
  config=$TRIREME_ROOT/config.yaml
  "$cluster" start
  eval "$("$cluster" env)"
  if [[ $(srun --mpi=list 2>&1) != *pmix* ]]; then
    echo "skipped: this Slurm has no PMIx plugin (srun --mpi=list), without which srun starts no ranks of Open MPI"
    exit 77
  fi
  cd "$TRIREME_ROOT"
  for i in {1..2000}; do echo "$i green bottles hanging on the wall"; done >text.txt
  "$TRIREME" data prepare --tokenizer bytes --output text text.txt >/dev/null 2>&1
  cat >"$config" <<'YAML'
run: {steps: 1000000, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 64}
data: {sources: [text], global_batch: 8, tokenizer: bytes}
parallel: {pp: 2, dp: 2}
lr: {peak: 1e-2, decay_steps: 1000}
cluster: {ranks_per_node: 2}
metrics: {log_every: 100}
YAML
}
# start NAME [submit.sh options]: sets job, run_dir and log. Two ranks per node, unless an option says otherwise; as
# many steps as in the config if `steps` is empty.
start() {
  run_dir=runs/$1
  local name=$1 ranks=(--ranks 2) line
  shift
  [[ " $* " != *" --ranks "* ]] || ranks=()
  line=$("$root/slurm/submit.sh" "$config" --set run.name="$name" ${steps:+--set run.steps="$steps"} \
    --set checkpoint.every="$every" ${ranks[@]+"${ranks[@]}"} "$@") || fail "submit.sh"
  job=${line%% *}
  log=$run_dir/slurm-$job.log
}
# show FIELD: prints the field of scontrol's description of the job.
show() {
  local text
  text=" $(scontrol show job --oneliner "$job")"
  if [[ $text =~ \ $1=([^ ]*) ]]; then echo "${BASH_REMATCH[1]}"; fi
}
state_is() { [[ $(show JobState) == "$1" ]]; }
# Many concurrent queries to Slurm take time from working jobs: jobs_now, if set, is a file with Slurm's recent
# description of all jobs.
jobs_now=''
ended() {
  local ends='(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|PREEMPTED)'
  if [[ -s $jobs_now ]] && ! grep -qE "^JobId=$job .* JobState=$ends " "$jobs_now"; then return 1; fi
  [[ $(show JobState) =~ ^$ends$ ]]
}
says() { grep -qE -- "$1" "$log" 2>/dev/null; }
last_step() { tail -n 5 "$run_dir/metrics.jsonl" 2>/dev/null | sed -nE 's/.*"step": *([0-9]+),.*/\1/p' | tail -n 1; }
beyond() { (($(last_step || true) + 0 > $1)); }
expect_log() { until_true "'$1' in the log" says "$1"; }
# finish STATE EXITCODE RESTARTS
finish() {
  until_true "the end" ended
  [[ $(show JobState) == "$1" && $(show ExitCode) == "$2" && $(show Restarts) == "$3" ]] ||
    fail "ended $(show JobState), $(show ExitCode), $(show Restarts) restarts; expected $*"
}
# rank_process RANK: prints its process id, for kill, in this cluster only: others also count their jobs from 1.
rank_process() {
  if [[ -z ${TRAINER:-} ]]; then
    cut -d' ' -f1 "$run_dir/rank.$1"
    return
  fi
  local process
  for process in /proc/[0-9]*; do
    if [[ $(readlink "$process/exe") == "$TRAINER" ]] && grep -qzx "SLURM_CONF=$SLURM_CONF" "$process/environ" &&
      grep -qzx "SLURM_JOB_ID=$job" "$process/environ" && grep -qzx "SLURM_PROCID=$1" "$process/environ"; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}
# adds_up NAME: checks that every second of the run's wall time is in one category (within 0.1 %).
adds_up() {
  "$TRAINER" report "runs/$1" --time --json >"$work/time.json" || fail "no times of $1"
  awk -F'[:,]' -v name="$1" '
    /^  "wall_s"/ { wall = $2 }
    /^  }/ { inside = 0 }
    inside { sum += $2 }
    /^  "seconds"/ { inside = 1 }
    END {
      printf "%s: %.3f s, of which %.3f s are in categories\n", name, wall, sum
      exit !(wall > 0 && (sum - wall) ^ 2 <= (wall / 1000) ^ 2)
    }' "$work/time.json" || fail "the times of $1: $(cat "$work/time.json")"
}
# lines TEXT: prints how often the log contains it
lines() { grep -cE -- "$1" "$log" || true; }
nodes_of() { scontrol show hostnames "$(show NodeList)"; }
node_is_back() { [[ $(sinfo -h -n "$1" -p normal -o %T) =~ ^(idle|mixed|allocated)$ ]]; }
