#!/usr/bin/env bash
# slurm/train.sbatch with `trireme supervise` under Slurm: one job gets a fault of each kind, recovers automatically,
# excludes only the faulty node, and finally has the losses of an undisturbed run, bit for bit. Then prints a table of
# the times until a fault was detected and until the run trained again.
#
#   heals_inside_the_allocation.sh PATH_OF_trireme [FAULT...]      all faults in `all`, or these, in this order
#
# `by_requeue` is a killed rank without `supervise`, for comparison.
#
# Exit status 77 and "skipped" without Slurm or without its PMIx plugin.
#
# KEEP     1: keep the folder with all logs
TRAINER=$(realpath "${1:?heals_inside_the_allocation.sh PATH_OF_trireme [FAULT...]}")
shift
all=(rank_killed rank_stopped rank_stopped_at_start agent_killed agent_stopped driver_killed node_without_power slurmd_killed too_few_nodes
  batch_host_lost by_requeue)
faults=("$@")
((${#faults[@]})) || faults=("${all[@]}")
CLUSTER_NODES=9
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
export TRIREME=$TRAINER SUPERVISE=1 STRAGGLER_SECONDS=20
begin_training

# Prints step, loss and gradient norm as written, without steps that were lost at a restart.
history() {
  sed -nE 's/^\{"restart":.*"step": *([0-9]+),.*/restart \1/p
    s/.*"step": *([0-9]+),.*("loss":[^,]*,"grad_norm":[^,]*),.*/\1 \2/p' "runs/$1/metrics.jsonl" |
    awk '$1 == "restart" {for (step in row) if (step + 0 > $2 + 0) delete row[step]; next}
      {row[$1] = $0} END {for (step in row) print row[step]}' | sort -n
}
# processes_of_cluster PATTERN [NAME=VALUE]: lists this cluster's trireme processes whose command line has PATTERN.
processes_of_cluster() {
  local process
  for process in /proc/[0-9]*; do
    if [[ $(readlink "$process/exe") == "$TRAINER" ]] && grep -qzx "SLURM_CONF=$SLURM_CONF" "$process/environ" &&
      grep -qzx -- "${2:-SLURM_CONF=$SLURM_CONF}" "$process/environ" && tr '\0' ' ' <"$process/cmdline" | grep -q -- "$1"; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}
agent_of() { processes_of_cluster "supervise --agent" "SLURMD_NODENAME=$1" | tail -n 1; }
rank_of_node() { processes_of_cluster " train " "SLURMD_NODENAME=$1" | tail -n 1; }
new_agent() { [[ -n $(agent_of "$1") && $(agent_of "$1") != "$2" ]]; }
events() { grep "\"kind\":\"$1\"" "$run_dir/events.jsonl" || true; }
excluded_nodes() { "$TRAINER" supervise "$run_dir" --nodes | awk '{print $1}' | paste -sd,; }
# used K: prints the K-th node of the current attempt.
used() { events attempt_start | tail -n 1 | sed -nE 's/.*"nodes":"([^"]*)".*/\1/p' | cut -d, -f"$1"; }

attempts=1 excluded='' restarts=0
declare -A faulty=()
# Prints a field of the current attempt.
field() { events attempt_start | tail -n 1 | sed -nE "s/.*\"$1\":\"?([^,\"]*)[,\"].*/\1/p"; }
more_attempts() { (($(events attempt_start | wc -l) > attempts)); }
trains() { events start | grep -qF "\"attempt\":\"$(field attempt)\"" && beyond $(($(field checkpoint) + 30)); }
# strike COMMAND...: injects the fault.
strike() {
  struck=$EPOCHREALTIME
  "$@"
}
# after KIND [FIELD]: prints the time of the first such event after the fault, or its field.
after() {
  events "$1" | sed -nE "s/^\\{\"time\":([0-9.]+),.*/\\1 &/p" | awk -v struck="$struck" -v field="\"${2:-time}\":" '
    $1 > struck && (at = index($0, field)) { print substr($0, at + length(field)) + 0; exit }' OFMT=%.3f
}
# A row of the table: from the fault until the driver ends the attempt or another driver begins one, and from there
# until the ranks do steps again.
rows=()
tally() {
  local noticed again
  noticed=$(after attempt_end noticed)
  [[ -n $noticed ]] || noticed=$(after attempt_start)
  again=$(after start)
  rows+=("$(awk -v what="$1" -v struck="$struck" -v noticed="$noticed" -v again="$again" -v out="$excluded" 'BEGIN {
    printf "%-24s %9.1f %9.1f   %s", what, noticed - struck, again - noticed, out == "" ? "none" : out }')")
}
# healed WHAT: checks that another attempt trains, and that exactly the nodes of `faulty` are excluded.
healed() {
  until_true "another attempt" more_attempts
  attempts=$(events attempt_start | wc -l)
  until_true "training again" trains
  attempts=$(events attempt_start | wc -l)
  excluded=$(printf '%s\n' "${!faulty[@]}" | sort | paste -sd,)
  [[ $(excluded_nodes | tr , '\n' | sort | paste -sd,) == "$excluded" ]] ||
    fail "$1: the excluded nodes are '$(excluded_nodes)', but the faulty ones are '$excluded'"
  tally "$1"
  echo "$1: attempt $attempts on $(used 1),$(used 2) from step $(field checkpoint), $((SECONDS - since)) s," \
    "excluded: ${excluded:-none}"
}

fault_rank_killed() {
  strike kill -KILL "$(rank_of_node "$(used 2)")"
  healed "a rank killed"
}
fault_rank_stopped() {
  strike kill -STOP "$(rank_of_node "$(used 2)")"
  healed "a rank stopped"
}
# Stops a rank of the next attempt as soon as it exists, before it can have a flight recorder.
fault_rank_stopped_at_start() {
  local before rank='' tries
  before=$(pgrep -f "^$TRAINER train $config")
  kill -KILL "$(rank_of_node "$(used 2)")"
  for ((tries = 0; tries < 6000; ++tries)); do # 60 s and more
    rank=$(pgrep -f "^$TRAINER train $config" | grep -vxF "$before" | head -n 1) || true
    [[ -z $rank ]] || break
    sleep 0.01
  done
  [[ -n $rank ]] || fail "no rank of another attempt has been started"
  strike kill -STOP "$rank"
  healed "a rank stopped at start"
}
undisturbed() {
  until_true "a new agent" new_agent "$2" "$3"
  local step
  step=$(last_step)
  until_true "progress" beyond $((step + 30))
  ! more_attempts || fail "$1: another attempt"
  [[ $(excluded_nodes) == "$excluded" ]] || fail "$1: excluded are $(excluded_nodes)"
  rows+=("$(printf '%-24s %9s %9s   %s' "$1" - "continues" "${excluded:-none}")")
  echo "$1: it continues with another agent, $((SECONDS - since)) s"
}
fault_agent_killed() {
  local node agent
  node=$(used 2) agent=$(agent_of "$(used 2)")
  strike kill -KILL "$agent"
  undisturbed "an agent killed" "$node" "$agent"
}
fault_agent_stopped() {
  local node agent
  node=$(used 2) agent=$(agent_of "$(used 2)")
  strike kill -STOP "$agent"
  undisturbed "an agent stopped" "$node" "$agent"
}
fault_driver_killed() {
  strike kill -KILL "$(processes_of_cluster "supervise $config.* --ranks")"
  expect_log "the driver was killed by signal 9 and is restarted"
  healed "the driver killed"
}
fault_node_without_power() {
  local node
  node=$(used 2) # the first one has the batch script
  faulty[$node]=1
  strike "$cluster" kill-node "$node"
  healed "a node without power"
}
# Its ranks stay alive: the fault shows when ranks must be started again.
fault_slurmd_killed() {
  local node
  node=$(used 2)
  faulty[$node]=1
  "$cluster" kill-daemon "$node"
  strike kill -KILL "$(rank_of_node "$node")"
  until_true "$node excluded" says "node $node is excluded"
  healed "a slurmd killed"
}
# No spare remains: the job is requeued and excludes the nodes that the run excludes.
fault_too_few_nodes() {
  local node
  while true; do
    node=$(used 2)
    faulty[$node]=1
    strike "$cluster" kill-node "$node"
    until_true "$node excluded" says "node $node is excluded"
    ! says "nodes are left, but 2 are needed" || break
    healed "a node without power"
    since=$SECONDS
  done
  expect_log "restart $restarts: status 75 "
  # Slurm must learn which nodes are dead, or the job would pend.
  for node in "${!faulty[@]}"; do "$cluster" notice "$node"; done
  restarts=$((restarts + 1))
  # Slurm is notified if possible, and handles nodes itself that it knows to be dead.
  expect_log "the run excludes .*(: this job excludes node|, and Slurm has taken these nodes out of service)"
  expect_log "restart $restarts: 4 ranks"
  healed "too few nodes"
  for node in "${!faulty[@]}"; do ! nodes_of | grep -qx "$node" || fail "$node was allocated again: $(nodes_of)"; done
}
# Only the agents can requeue the job. The node of the batch script need not be excluded: Slurm knows that it is dead.
fault_batch_host_lost() {
  local node
  node=$(show BatchHost)
  strike "$cluster" kill-node "$node"
  "$cluster" notice "$node"
  restarts=$((restarts + 1))
  expect_log "restart $restarts: 4 ranks"
  healed "the batch host lost"
}

begun_again() { [[ -n $(after start) ]]; }
# Measures the cost if the allocation ends with the rank: another run, which is then cancelled.
fault_by_requeue() {
  local name=$run_dir kept=$job kept_log=$log
  SUPERVISE=0 start plain --ranks 4
  until_true "step 30" beyond 30
  strike kill -KILL "$(rank_process 3)"
  expect_log "restart 1: 4 ranks"
  until_true "training again" begun_again
  rows+=("$(awk -v struck="$struck" -v noticed="$(after failure)" -v again="$(after start)" 'BEGIN {
    printf "%-24s %9.1f %9.1f   by requeue, cred_expire 15 (120 by default)", "a rank killed", noticed - struck,
      again - noticed }')")
  scancel "$job"
  until_true "cancelled" ended
  run_dir=$name job=$kept log=$kept_log
}

since=$SECONDS
start parts --ranks 4 --spares 2
until_true "step 30" beyond 30
for fault in "${faults[@]}"; do
  since=$SECONDS
  "fault_$fault"
done

steps=$(($(last_step) + 300)) # the run had no end until here; its ranks read the end when they start
sed -i "s/steps: 1000000/steps: $steps/" "$config"
since=$SECONDS
fault_rank_killed
expect_log "finished at step $steps"
# A node without power never reports that the job has ended: Slurm would wait for it until SlurmdTimeout.
for node in "${!faulty[@]}"; do "$cluster" notice "$node"; done
finish COMPLETED 0:0 "$restarts"
[[ $(history parts | wc -l) -eq $steps ]] || fail "the run has $(history parts | wc -l) steps of $steps"

adds_up parts
SUPERVISE=0 start whole --ranks 4
finish COMPLETED 0:0 0
cmp <(history whole) <(history parts) || fail "the histories differ: $(diff <(history whole) <(history parts) | head)"
printf '%-24s %9s %9s   %s\n' "seconds" "noticed" "training" "excluded"
printf '%s\n' "${rows[@]}"
echo "ok: after $((attempts - 1)) faults the same $steps losses and gradient norms as without ($SECONDS s)"
