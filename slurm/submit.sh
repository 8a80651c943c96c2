#!/usr/bin/env bash
# Submits training runs; each config's mesh determines nodes and ranks.
#
#   slurm/submit.sh CONFIG... [--ranks N] [--spares N] [--set section.key=value]... [--no-data] [sbatch options]
#
#   slurm/submit.sh my.yaml --ranks 16 --time=2-00:00 --partition=gpu
#   slurm/submit.sh my.yaml -N 4                                    dp fills 4 nodes
#   slurm/submit.sh my.yaml -N 32 --spares 1                        33 nodes, of which 32 train
#   slurm/submit.sh a.yaml b.yaml c.yaml --set run.steps=1000       three runs, one after the other
#
# A node runs cluster.ranks_per_node ranks, one per GPU or, if run.device is cpu, one per share of its cores. They share
# all CPUs of the node unless --cpus-per-task is given. If parallel.dp is 0, --ranks, -n or -N is required. With several
# CONFIGs, each run starts when the previous one has finished with status 0, restarts included; if one ends with another
# status, the following ones are cancelled. AFTER=afterany starts them anyway. --set applies to every run. The log is
# slurm-JOB.log in the run folder. The script prints "JOB RUN_FOLDER" for each run. It refuses a run folder whose job is
# still in the queue, unless --dependency says what to wait for, and a --time too short to train.
#
# `trireme check` checks everything before anything is submitted, including token files and tokenizer; use --no-data if
# only the nodes can read those.
#
# --spares N requests N more nodes, which replace failed ones (`trireme supervise`).
#
# The environment sets the options of slurm/train.sbatch (RESTART_BUDGET, ...), TRIREME (the executable) and TRIREME_ENV
# (the settings file).
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit "$1"
}
die() {
  local text="submit.sh: $*"
  echo "${text//[[:cntrl:]]/?}" >&2
  exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TRIREME_ROOT=$(cd "${TRIREME_ROOT:-$PWD}" && pwd) || exit 2
export TRIREME_ROOT
if [[ -z ${TRIREME:-} ]]; then
  TRIREME=$(dirname "$here")/build/bin/trireme
  [[ -x $TRIREME ]] || TRIREME=$(dirname "$here")/../../bin/trireme # if installed
fi
export TRIREME
[[ $TRIREME != */* || $TRIREME == /* ]] || TRIREME=$PWD/$TRIREME # the job starts in TRIREME_ROOT
command -v "$TRIREME" >/dev/null || die "cannot run $TRIREME; set TRIREME to the executable"
export TRIREME_ENV=${TRIREME_ENV:-$here/env.sh}
[[ $TRIREME_ENV == /* ]] || TRIREME_ENV=$TRIREME_ROOT/$TRIREME_ENV
after=${AFTER:-afterok}
export SUPERVISE=${SUPERVISE:-1} SPARES=${SPARES:-0}

configs=() settings=() options=() ranks='' nodes='' partition='' cpus='' waits=no data=()
header() { sed -nE "s/^#SBATCH --$1=([^ ]+).*/\1/p" "$here/train.sbatch"; }
limit=${SBATCH_TIMELIMIT:-$(header time)} signal=${SBATCH_SIGNAL:-$(header signal)}
while (($#)) && [[ $1 != -* ]]; do
  configs+=("$1")
  shift
done
[[ ${1:-} != --help && ${1:-} != -h ]] || usage 0
((${#configs[@]})) || usage 2 >&2
number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 $2: expected a whole number >= 1"; }
before='' # the word before $1
# Options of sbatch whose next word is not their value.
flags='^(-[HkOsQvW]|--(contiguous|exclusive|get-user-env|hold|ignore-pbs|nice|no-data|no-kill|no-requeue|overcommit'
flags+='|oversubscribe|parsable|propagate|quiet|reboot|requeue|spread-job|test-only|use-min-nodes|verbose|wait))$'
while (($#)); do
  case $1 in
    --set | --ranks | --spares | --ntasks | --nodes | --partition | --time | --signal | -n | -N | -p | -t)
      (($# > 1)) || die "$1 needs a value"
      if [[ $1 == --* ]]; then set -- "$1=$2" "${@:3}"; else set -- "$1$2" "${@:3}"; fi
      ;;
  esac
  case $1 in
    --no-data) data=(--no-data) ;;
    --set=*) settings+=(--set "${1#*=}") ;;
    --spares=*) SPARES=${1#*=} ;;
    --ranks=* | --ntasks=*) ranks=${1#*=} ;;
    -n*) ranks=${1#-n} ;;
    --nodes=*) nodes=${1#*=} ;;
    -N*) nodes=${1#-N} ;;
    --partition=*) partition=${1#*=} options+=("$1") ;;
    -p*) partition=${1#-p} options+=("$1") ;;
    --time=*) limit=${1#*=} options+=("$1") ;;
    -t*) limit=${1#-t} options+=("$1") ;;
    --signal=*) signal=${1#*=} options+=("$1") ;;
    --array | --array=* | -a*)
      die "$1: the tasks of an array would all train in one run folder; name several configs instead"
      ;;
    --cpus-per-task | --cpus-per-task=* | -c*) cpus=given options+=("$1") ;;
    --dependency | --dependency=* | -d*) waits=yes options+=("$1") ;;
    *.yaml | *.yml)
      [[ $before =~ ^(-[A-Za-z]|--[a-z-]+)$ && ! $before =~ $flags ]] || die "$1: name the configs before the options"
      options+=("$1")
      ;;
    *) options+=("$1") ;;
  esac
  before=$1
  shift
done
[[ -z $ranks ]] || number --ranks "$ranks"
[[ -z $nodes ]] || number --nodes "$nodes"
[[ $SPARES == 0 ]] || number --spares "$SPARES"
for name in SUPERVISE DOCTOR RESTART_BUDGET {DRAIN,STRAGGLER,CONTROLLER,NODE,STORAGE}_SECONDS; do
  [[ ${!name-0} =~ ^(0|[1-9][0-9]{0,7})?$ ]] || die "$name=${!name}: expected a whole number"
done
[[ -r $TRIREME_ENV && ! -d $TRIREME_ENV ]] || die "TRIREME_ENV=$TRIREME_ENV: cannot read this settings file"
! grep -q $'\r$' -- "$TRIREME_ENV" ||
  die "TRIREME_ENV=$TRIREME_ENV: lines of this settings file end in CR LF, which become part of its values; convert" \
    "it: sed -i 's/\r$//' $TRIREME_ENV"
"$BASH" -n "$TRIREME_ENV" || die "TRIREME_ENV=$TRIREME_ENV: this settings file has a syntax error"

# seconds_of TIME: prints the seconds of sbatch's forms M, M:S, H:M:S, D-H, D-H:M and D-H:M:S, rounded up to minutes as
# in Slurm, and nothing for any other form.
seconds_of() {
  [[ $1 =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] || return 0
  local days=0 part=() time=$1
  if [[ $time == *-* ]]; then
    days=${time%%-*}
    IFS=: read -ra part <<<"${time#*-}"
  else
    IFS=: read -ra part <<<"$time"
    ((${#part[@]} == 3)) || part=(0 "${part[@]}")
  fi
  echo $(((10#$days * 1440 + 10#${part[0]} * 60 + 10#${part[1]:-0} + (10#${part[2]:-0} + 59) / 60) * 60))
}
# Slurm may send the signal up to 60 s early.
lead=60
[[ ! $signal =~ @([0-9]{1,8})$ ]] || lead=$((10#${BASH_REMATCH[1]}))
seconds=$(seconds_of "$limit")
if [[ -n $seconds ]] && ((seconds > 0 && seconds <= lead + 60)); then
  die "--time=$limit leaves no time to train: Slurm requests the last checkpoint up to $((lead + 60)) s before the" \
    "end (--signal=$signal); request more time, or a shorter lead with DRAIN_SECONDS and fault.grace_seconds below it"
fi
# Without supervise, a lost node ends the job, and Slurm requeues it.
if [[ $SUPERVISE == 0 ]]; then
  [[ $SPARES == 0 ]] || die "--spares $SPARES: only \`trireme supervise\` can use spares, but SUPERVISE is 0"
  options+=(--no-kill=off)
fi

cd "$TRIREME_ROOT"
check() { "$TRIREME" check "$@" ${settings[@]+"${settings[@]}"}; }

# Prints the number of CPUs of the partition's smallest node.
cpus_of_node() {
  sinfo --noheader ${partition:+--partition="$partition"} --format='%P %c' |
    awk -v any="$partition" 'any != "" || $1 ~ /[*]$/ {sub(/[+]/, "", $2); if (!least || $2 < least) least = $2}
      END {print least + 0}'
}

# free RUN_DIR: fails if another job uses the folder: one that has started (slurm.state) or one that was submitted.
mine=' '
free() {
  local other state jobs
  [[ $waits == no ]] || return 0
  jobs=$(cat "$1"/slurm.{state,submitted} 2>/dev/null | sed -nE 's/^(job=)?([0-9]+)$/\2/p' | sort -un |
    paste -sd,) || true
  [[ -n $jobs ]] || return 0
  while read -r other state; do
    [[ $mine == *" $other "* || $state == COMPLETING ]] ||
      die "$1 is the run folder of job $other, which is $state; cancel that job, or wait for it with --dependency"
  done < <(squeue --noheader --jobs="$jobs" --format='%i %T' 2>/dev/null)
}

# plan CONFIG: sets the variables below, so that every error is found before anything is submitted.
plan() {
  local config=$1 per_node run_nodes values lines
  run_ranks=$ranks
  if [[ -z $run_ranks && -n $nodes ]]; then
    # A mesh of one replica is valid for every config, so this needs no number of ranks.
    per_node=$("$TRIREME" check "$config" ${settings[@]+"${settings[@]}"} --set parallel.dp=1 \
      --get cluster.ranks_per_node) || exit $?
    run_ranks=$((nodes * per_node))
  fi
  values=$(check "$config" ${run_ranks:+--ranks "$run_ranks"} --get run.name --get run.dir --get run.device \
    --get parallel.tp --get parallel.pp --get parallel.dp --get cluster.ranks_per_node) || exit $?
  mapfile -t lines <<<"$values"
  ((${#lines[@]} == 7)) || die "$config: run.dir contains a line break; give another folder"
  {
    read -r run_name
    read -r run_dir
    read -r device
    read -r tp
    read -r pp
    read -r dp
    read -r per_node
  } <<<"$values"
  run_ranks=$((tp * pp * dp))
  ((run_ranks >= per_node)) || per_node=$run_ranks
  ((run_ranks % per_node == 0)) ||
    die "$config: $run_ranks ranks do not fill nodes of $per_node ranks; change the mesh or cluster.ranks_per_node"
  run_nodes=$((run_ranks / per_node))
  [[ -z $nodes || $nodes -eq $run_nodes ]] || die "$config: $run_ranks ranks take $run_nodes nodes, not $nodes"
  gpus=$per_node
  [[ $device != cpu ]] || gpus=0
  # Request whole nodes, but not with --exclusive: such a job may pend forever when it is requeued after a node died.
  share=()
  if [[ -z $cpus ]]; then share=(--cpus-per-task=$(($(cpus_of_node) / per_node))); fi
  if [[ ${share[*]} == --cpus-per-task=0 ]]; then share=(--cpus-per-task=1); fi
  shape=(${share[@]+"${share[@]}"} --nodes=$((run_nodes + SPARES)) --ntasks=$((run_ranks + SPARES * per_node))
    --ntasks-per-node="$per_node" --gpus-per-node="$gpus")
}

for config in "${configs[@]}"; do
  plan "$config"
  check "$config" --ranks "$run_ranks" ${data[@]+"${data[@]}"} >/dev/null || exit $?
  free "$run_dir"
done
previous=''
for config in "${configs[@]}"; do
  plan "$config"
  mkdir -p "$run_dir"
  # slurm.submitted lists the jobs that were submitted for this run; a job that sees this file sees the run folder. The
  # lock excludes another submit.sh; on a file system without locks, the job that starts second stops.
  exec {submitted}>>"$run_dir/slurm.submitted"
  flock --wait 60 --conflict-exit-code 75 "$submitted" || [[ $? -ne 75 ]] ||
    die "$run_dir: another submit.sh has locked slurm.submitted for 60 s; try again when it has ended"
  free "$run_dir"
  chain=()
  [[ -z $previous ]] || chain=(--dependency="$after:$previous" --kill-on-invalid-dep=yes)
  previous=$(sbatch --parsable --job-name="$run_name" --output="$run_dir/slurm-%j.log" "${shape[@]}" \
    ${chain[@]+"${chain[@]}"} ${options[@]+"${options[@]}"} "$here/train.sbatch" "$config" \
    ${settings[@]+"${settings[@]}"})
  previous=${previous%%;*} # of several clusters: "job;cluster"
  echo "$previous" >&"$submitted"
  exec {submitted}>&-
  mine+="$previous "
  echo "$previous $run_dir"
done
