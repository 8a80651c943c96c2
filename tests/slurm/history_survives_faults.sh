#!/usr/bin/env bash
# The executable under Slurm, on two nodes: jobs that are stopped by a signal, by their time limit and by preemption,
# and that lose a rank, a node and a slurmd, restart automatically each time and finally have the loss history of an
# undisturbed run, bit for bit.
#
#   history_survives_faults.sh PATH_OF_trireme PATH_OF_mp_ends
#
# Exit status 77 and "skipped" without Slurm or without its PMIx plugin.
#
# KEEP     1: keep the folder with all logs
TRAINER=$(realpath "${1:?history_survives_faults.sh PATH_OF_trireme PATH_OF_mp_ends}")
ends=$(realpath "${2:?history_survives_faults.sh PATH_OF_trireme PATH_OF_mp_ends}")
CLUSTER_NODES=8
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
export TRIREME=$TRAINER STRAGGLER_SECONDS=20
begin_training

# The statuses that srun, with its options, returns for the ends that train.sbatch distinguishes: one rank's status is
# that of the step, and a killed rank ends the step with a status that is retried (the signal's, or that of the other
# ranks, which miss it).
for end in none:0 throw=4:4 throw=5:5 throw=7:7 kill:137,5,6; do
  status=0
  srun --mpi=pmix --nodes=2 --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=0 --wait="$STRAGGLER_SECONDS" \
    "$ends" "${end%:*}" >ends.txt 2>&1 || status=$?
  [[ ,${end#*:}, == *,$status,* ]] || fail "${end%:*}: srun ends with $status, not ${end#*:}: $(tail -n 20 ends.txt)"
  echo "srun, ${end%:*}: status $status"
done

# Prints step, loss and gradient norm as written, without steps that were lost at a restart.
history() {
  sed -nE 's/^\{"restart":.*"step": *([0-9]+),.*/restart \1/p
    s/.*"step": *([0-9]+),.*("loss":[^,]*,"grad_norm":[^,]*),.*/\1 \2/p' "runs/$1/metrics.jsonl" |
    awk '$1 == "restart" {for (step in row) if (step + 0 > $2 + 0) delete row[step]; next}
      {row[$1] = $0} END {for (step in row) print row[step]}' | sort -n
}
# Stops the run until it is continued, so that no steps are done and no core is used while Slurm is slow. Slurm itself
# continues the ranks when it ends the job.
freeze() {
  local rank
  frozen=()
  for rank in {0..3}; do frozen+=("$(rank_process "$rank")"); done
  kill -STOP "${frozen[@]}"
}
# thaw [FIRST]: continues all ranks, or those from FIRST on.
thaw() { kill -CONT "${frozen[@]:${1:-0}}" 2>/dev/null || true; }
# restarted N WHAT: checks that the job runs for the Nth time again, found a checkpoint, and trains.
restarted() {
  expect_log "restart $1: 4 ranks on .* resumes from step [1-9]"
  local from
  from=$(sed -nE "s/.* restart $1: .* resumes from step ([0-9]+),.*/\1/p" "$log")
  until_true "step $((from + 30))" beyond $((from + 30))
  echo "$2: $(sed -nE "s/.* restart $1: .* (resumes from step [0-9]+, [0-9]+ steps lost),.*/\1/p" "$log") ($SECONDS s)"
}
# Before its last fault a run has no end, so that all faults come before it. Starts after this call have one.
end_after_200() {
  sed -i "s/steps: 1000000/steps: $(($(last_step) + 200))/" "$config"
}

# Two runs get their faults concurrently.
signals_and_limits() {
  start signals_and_limits --ranks 4
  until_true "step 30" beyond 30

  scancel --batch --signal=USR1 "$job"
  expect_log "restart 0: status 75 \(stopped early\)"
  restarted 1 "a signal"
  freeze

  kill -KILL "$(rank_process 3)"
  thaw
  expect_log "restart 1: status [0-9]+ "
  restarted 2 "a killed rank"
  freeze

  end_after_200
  scontrol update JobId="$job" EndTime=now+120 # the signal comes two minutes before the end: when Slurm next checks
  expect_log "restart 2: signal USR1: draining"
  thaw
  expect_log "restart 2: status 75 \(stopped early\)"
  scontrol update JobId="$job" TimeLimit=60
  restarted 3 "the time limit"
  finish COMPLETED 0:0 3
}
lost_nodes() {
  local node
  start lost_nodes --ranks 4
  until_true "step 30" beyond 30
  freeze

  sbatch --partition=urgent --nodelist="$(show NodeList)" --exclusive --output=/dev/null --wrap='sleep 2' >/dev/null
  expect_log "restart 0: status 75 \(stopped early\)"
  restarted 1 "preemption"
  freeze

  node=$(nodes_of | head -n 1) # has rank 0 and the batch script
  "$cluster" kill-node "$node"
  "$cluster" notice "$node"
  restarted 2 "a node without power"
  freeze
  [[ $(show NodeList) != *"$node"* ]] || fail "restarted on the dead node"

  node=$(nodes_of | tail -n 1) # its ranks stay alive until the others stop them
  end_after_200
  "$cluster" kill-daemon "$node"
  thaw 2
  "$cluster" notice "$node"
  restarted 3 "a dead slurmd"
  [[ $(show NodeList) != *"$node"* ]] || fail "restarted on a node without slurmd"
  finish COMPLETED 0:0 3
}

# run_alone RUN: runs it with its own config.
run_alone() {
  local config=$TRIREME_ROOT/$1.yaml
  cp "$TRIREME_ROOT/config.yaml" "$config"
  "$1"
}
runs=(signals_and_limits lost_nodes)
declare -A pids=()
for name in "${runs[@]}"; do
  (
    trap - EXIT
    run_alone "$name"
  ) >"$work/$name.out" 2>&1 &
  pids[$name]=$! background+=("$!")
done
failed=0
for name in "${runs[@]}"; do
  wait_for "${pids[$name]}" || failed=1
  sed "s/^/$name: /" "$work/$name.out"
done
((failed == 0)) || exit 1

# Compares with a run as long as the longer one.
longest=0
for name in "${runs[@]}"; do
  last=$(history "$name" | tail -n 1 | cut -d' ' -f1)
  [[ $(history "$name" | wc -l) -eq $last ]] || fail "$name has $(history "$name" | wc -l) steps of $last"
  ((last <= longest)) || longest=$last
  adds_up "$name"
done
sed -i "s/steps: 1000000/steps: $longest/" "$config"
start whole --ranks 4
finish COMPLETED 0:0 0
for name in "${runs[@]}"; do
  cmp <(history whole | head -n "$(history "$name" | wc -l)") <(history "$name") ||
    fail "the histories differ: $(diff <(history whole) <(history "$name") | head)"
done
echo "ok: after 6 restarts the same losses and gradient norms as without, up to step $longest ($SECONDS s)"
