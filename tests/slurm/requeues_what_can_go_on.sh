#!/usr/bin/env bash
# slurm/train.sbatch and slurm/submit.sh on a private Slurm cluster (cluster.sh): what is requeued, what is not, and
# what the log says. The trainer is a stand-in (trainer.sh) unless another one is given.
#
#   requeues_what_can_go_on.sh PATH_OF_trireme PATH_OF_make_checkpoint [CASE...]
#
# Runs all cases, or these; exit status 77 and "skipped" if Slurm is not installed
#
# TRAINER  executable instead of the stand-in: the cases that need no stand_in.* fields run, with
# CONFIG   its config for two ranks on a CPU, which gets --set run.name, run.steps and checkpoint.every, and
# STEPS    run.steps (a run of 10 s or more) and
# EVERY    checkpoint.every
# KEEP     1: keep the folder with all logs
REAL_TRIREME=$(realpath "${1:?requeues_what_can_go_on.sh PATH_OF_trireme PATH_OF_make_checkpoint [CASE...]}")
MAKE_CHECKPOINT=$(realpath "${2:?requeues_what_can_go_on.sh PATH_OF_trireme PATH_OF_make_checkpoint [CASE...]}")
export REAL_TRIREME MAKE_CHECKPOINT
shift 2
CLUSTER_NODES=12
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# Cases that run concurrently, the longest first; those that need the cluster exclusively; and those of both that any
# trainer supports.
together=(faults_are_retried folder_away node_dies orphaned_script dead_node_noticed_first
  dies_before_its_state_file settings_file_breaks submitted_twice any_folder finished mistake_in_config data_missing
  killed_rank signal time_limit overtime deaf cancelled requeue_forbidden requeued_by_hand in_a_row row_breaks
  mesh_gives_nodes plain_sbatch preempted cancelled_while_a_node_is_awaited cancelled_while_storage_is_awaited)
alone=(controller_dies)
any_trainer=(finished mistake_in_config killed_rank signal time_limit overtime cancelled requeue_forbidden
  requeued_by_hand plain_sbatch preempted node_dies controller_dies)

steps=${STEPS:-60} every=${EVERY:-5}
export TRIREME=${TRAINER:-$here/trainer.sh}
config=${CONFIG:-$TRIREME_ROOT/config.yaml}
# Faults of a run happen before its end, however long they take: the stand-in waits at this step.
held=()
[[ -n ${TRAINER:-} ]] || held=(--set stand_in.ends=0:20:wait)
[[ -n ${CONFIG:-} ]] || echo "# the stand-in reads nothing here" >"$config"

# --- Cases ------------------------------------------------------------------------------------------------------------
case_finished() {
  start finished
  finish COMPLETED 0:0 0
  expect_log "restart 0: 2 ranks on node[0-9]+, .* starts from step 0, 0 steps lost"
  expect_log "finished at step $steps, effective training time [0-9.]+ %"
}

case_mistake_in_config() {
  local output status=0
  output=$("$root/slurm/submit.sh" "$config" --ranks 2 --set run.steppes=3 2>&1) || status=$?
  [[ $status -eq 2 && $output == *run.steppes* ]] || fail "submit.sh accepts it: $status, $output"
  # A config that was edited while the job waited.
  local bad=$TRIREME_ROOT/mistake.log
  job=$(TRIREME_ENV=$root/slurm/env.sh sbatch --parsable --output="$bad" --nodes=1 --ntasks-per-node=2 \
    --cpus-per-task=4 --gpus-per-node=0 "$root/slurm/train.sbatch" "$config" --set run.steppes=3)
  finish FAILED 2:0 0
  grep -q run.steppes "$bad" || fail "the log does not say why: $(cat "$bad")"
}

case_data_missing() {
  local output status=0
  run_dir=runs/missing
  output=$("$root/slurm/submit.sh" "$config" --ranks 2 --set run.name=missing --set stand_in.data=nowhere 2>&1) ||
    status=$?
  [[ $status -eq 3 && $output == *"nowhere: no such file"* ]] ||
    fail "submit.sh accepts missing data: $status, $output"
  [[ ! -e $run_dir ]] || fail "a run that was refused left a folder"
  start unseen --no-data --set run.steps=4 --set stand_in.data=nowhere
  finish COMPLETED 0:0 0
}

case_faults_are_retried() {
  STRAGGLER_SECONDS=30 start faults --comment="project a" --set stand_in.ends="0:12:4 1:17:5 2:22:6"
  finish COMPLETED 0:0 3
  # The log contains the output of every attempt.
  expect_log "restart 0: 2 ranks .* starts from step 0, 0 steps lost"
  expect_log "restart 1: 2 ranks .* resumes from step 10, 2 steps lost"
  expect_log "restart 2: 2 ranks .* resumes from step 15, 2 steps lost"
  expect_log "restart 0: status 4 \(device error\) after step 12, newest checkpoint: step 10"
  expect_log "restart 1: status 5 \(communication error\)"
  expect_log "restart 2: status 6 \(ended by the watchdog\)"
  # The last start that made a newer checkpoint, in the state file and in the job's comment.
  grep -qx "progress_restart=2" "$run_dir/slurm.state" || fail "state file: $(cat "$run_dir/slurm.state")"
  local comment
  comment=$(scontrol show job "$job" | sed -nE 's/^ *Comment=(.*[^ ]) *$/\1/p')
  [[ $comment == "project a trireme-progress:2" ]] || fail "comment: $comment"
}
case_killed_rank() {
  STRAGGLER_SECONDS=5 start killed_rank ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  kill -KILL "$(rank_process 1)"
  expect_log "restart 0: status [0-9]+ .* newest checkpoint"
  finish COMPLETED 0:0 1
}

case_signal() {
  start signal ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  scancel --batch --signal=USR1 "$job"
  expect_log "restart 0: signal USR1: draining"
  expect_log "restart 0: status 75 \(stopped early\)"
  expect_log "restart 1: .*, 0 steps lost"
  finish COMPLETED 0:0 1
  [[ $(lines ": draining") -eq 1 ]] || fail "more than one drain"
}

case_time_limit() {
  RESTART_BUDGET=50 start time_limit --signal=B:USR1@890 --set run.steps=1000000
  until_true "step 7" beyond 6
  # Slurm checks time limits every 30 s: the signal comes then, a quarter of an hour before the end.
  scontrol update JobId="$job" EndTime=now+900
  expect_log "restart 0: signal USR1: draining"
  expect_log "restart 0: status 75 \(stopped early\)"
  expect_log "restart 1: .*, 0 steps lost"
  scancel "$job"
}

case_overtime() {
  start overtime --set run.steps=1000000
  until_true "step 7" beyond 6
  until_true "another end" scontrol update JobId="$job" EndTime=now+3 # must not have passed at the request
  expect_log "DUE TO TIME LIMIT"
  expect_log "restart 0: requeued"
  expect_log "restart 1: 2 ranks"
  scancel "$job"
}

case_deaf() {
  DRAIN_SECONDS=3 start deaf --set stand_in.ends="0:7:deaf"
  until_true "step 8" beyond 7
  scancel --batch --signal=TERM "$job"
  expect_log "restart 0: signal TERM: draining"
  expect_log "the trainer did not stop within 3 s"
  expect_log "restart 1: "
  finish COMPLETED 0:0 1
}

case_cancelled() {
  start cancelled ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  scancel "$job"
  expect_log "stopped: the job was cancelled; the next submission resumes from step" # then the script does nothing more
  until_true "the end" ended
  [[ $(show JobState) == CANCELLED && $(show Restarts) == 0 ]] || fail "came back: $(show JobState)"
}

case_requeue_forbidden() {
  start forbidden ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  scontrol update JobId="$job" Requeue=0
  scancel --batch --signal=USR2 "$job"
  finish FAILED 75:0 0
  expect_log "does not allow a requeue \(Requeue=0\); the next submission resumes from step"
  # The next submission resumes, with its own state file.
  local first=$job
  start forbidden
  finish COMPLETED 0:0 0
  expect_log "job $job restart 0: .* 0 steps lost"
  ! says "starts from step 0," || fail "started over"
  grep -qx "job=$job" "$run_dir/slurm.state" || fail "state file of job $first"
}

case_requeued_by_hand() {
  start by_hand ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  scontrol requeue "$job"
  expect_log "restart 1: 2 ranks"
  finish COMPLETED 0:0 1
}

# A first start that dies before it has a state file, for example if Slurm requeues a job that could not be launched:
# the next start learns from submit.sh's file that the run folder exists, and begins.
case_dies_before_its_state_file() {
  printf '%s\n' "[[ \${SLURM_RESTART_COUNT:-0} -gt 0 ]] || { scontrol requeue \$SLURM_JOB_ID; kill -KILL \$PPID; }" \
    >"$work/dies.sh"
  TRIREME_ENV=$work/dies.sh start dies_before_its_state_file
  finish COMPLETED 0:0 1
  [[ $(lines "restart 0") -eq 0 ]] || fail "its first start has written a state file"
  expect_log "restart 1: .* starts from step 0, 0 steps lost"
  expect_log "restart 1: finished at step $steps"
}

# A run folder whose file system is unavailable at a restart: nothing is created in its place, and nothing starts over.
case_folder_away() {
  run_dir=runs/folder_away log=$TRIREME_ROOT/folder_away.log
  job=$(STORAGE_SECONDS=10 TRIREME_ENV=$root/slurm/env.sh sbatch --parsable --output="$log" --nodes=1 --ntasks-per-node=2 \
    --cpus-per-task=4 --gpus-per-node=0 "$root/slurm/train.sbatch" "$config" --set run.name=folder_away \
    --set run.steps="$steps" --set checkpoint.every="$every" --set stand_in.ends=0:12:wait)
  until_true "step 12" beyond 11
  scontrol requeue "$job"
  until_true "the end of the first start" grep -q "restart 0: .* the job has already been requeued" "$log"
  mv "$run_dir" "$work/away"
  until_true "a refusal" grep -q "$run_dir holds no files of this job's earlier starts" "$log"
  until_true "another start" grep -q "restart 1: requeued" "$log"
  [[ ! -e $run_dir ]] || fail "a new run folder replaces the unavailable one: $(ls -R "$run_dir")"
  mv "$work/away" "$run_dir"
  finish COMPLETED 0:0 2
  expect_log "restart 2: .* resumes from step 12"
}

# A settings file that ends its shell from the second start on, for example because a module is missing: the job does
# not restart forever, and its owner's comment is kept.
case_settings_file_breaks() {
  printf '%s\n' '[[ ${SLURM_RESTART_COUNT:-0} -eq 0 ]] || { echo "no module openmpi"; exit 1; }' >"$work/breaks.sh"
  RESTART_BUDGET=2 TRIREME_ENV=$work/breaks.sh start settings_file_breaks --comment="project b" \
    --set stand_in.ends=0:12:5
  finish FAILED 2:0 2
  expect_log "restart 2: the settings file $work/breaks.sh .* ended its shell with status 1"
  expect_log "restart 2: stopped: 2 restarts in a row made no checkpoint after step 10|made no progress"
  [[ $(scontrol show job "$job") == *"Comment=project b"* ]] || fail "the owner's comment is gone"
}

# One run folder, two jobs: the second is refused and changes nothing of the first's.
case_submitted_twice() {
  start twice --hold "${held[@]}"
  local first=$job first_log=$log output
  if output=$("$root/slurm/submit.sh" "$config" --ranks 2 --set run.name=twice 2>&1); then fail "submit.sh accepts it"; fi
  [[ $output == *"runs/twice is the run folder of job $first, which is PENDING"* ]] || fail "submit.sh says: $output"
  scontrol release "$first"
  until_true "step 7" beyond 6
  cp "$run_dir/slurm.state" "$work/state.before"
  if output=$("$root/slurm/submit.sh" "$config" --ranks 2 --set run.name=twice 2>&1); then fail "submit.sh accepts it"; fi
  [[ $output == *"runs/twice is the run folder of job $first, which is RUNNING"* ]] || fail "submit.sh says: $output"
  # Bypasses submit.sh, as if both were submitted before either began.
  log=$run_dir/slurm-second.log
  job=$(sbatch --parsable --output="$log" --nodes=1 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=0 \
    "$root/slurm/train.sbatch" "$config" --set run.name=twice)
  finish FAILED 2:0 0
  expect_log "runs/twice is the run of job $first, which is RUNNING; nothing was changed"
  cmp "$run_dir/slurm.state" "$work/state.before" || fail "the first job's state file was touched"
  touch "$run_dir/go"
  job=$first log=$first_log
  finish COMPLETED 0:0 0
}

# The current folder does not matter: executable and settings are those next to the script.
case_any_folder() {
  local tree=$work/tree submit_to
  mkdir -p "$tree/build/bin" "$work/elsewhere"
  cp -r "$root/slurm" "$tree"
  cp "$here/trainer.sh" "$tree/build/bin/trireme"
  run_dir=$work/elsewhere/runs/any
  unset TRIREME TRIREME_ENV TRIREME_ROOT
  cd "$work/elsewhere"
  echo "# nothing" >here.yaml
  submit_to=$("$tree/slurm/submit.sh" here.yaml --ranks 2 --set run.name=any --set run.steps=8) || fail "submit.sh"
  job=${submit_to%% *} log=$run_dir/slurm-$job.log
  finish COMPLETED 0:0 0
  log=$work/elsewhere/plain.log
  job=$(sbatch --parsable --output="$log" --nodes=1 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=0 \
    "$tree/slurm/train.sbatch" here.yaml --set run.name=any --set run.steps=12)
  finish COMPLETED 0:0 0
  expect_log "resumes from step 8"
  # By a relative path, from a folder with a blank in its name, without a number of ranks.
  mkdir "$work/my folder"
  cd "$work/my folder"
  cp ../elsewhere/here.yaml .
  log=$PWD/plain.log run_dir=$PWD/runs/any
  job=$(sbatch --parsable --output="$log" --nodes=1 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=0 \
    ../tree/slurm/train.sbatch here.yaml --set run.name=any --set run.steps=8)
  finish COMPLETED 0:0 0
  sed -i '/^#SBATCH --ntasks-per-node/d' "$tree/slurm/train.sbatch"
  job=$(sbatch --parsable --output="$log" --nodes=2 --cpus-per-task=4 --gpus-per-node=0 "$tree/slurm/train.sbatch" \
    here.yaml --set run.name=any)
  finish FAILED 2:0 0
  expect_log "stopped: the job does not set the number of ranks .*--ntasks-per-node"
}

case_in_a_row() {
  local output first second
  run_dir=runs/first
  touch "$TRIREME_ROOT"/{first,second}.yaml
  mkdir -p runs/second
  touch runs/second/go # the first run waits for this after its restart
  output=$("$root/slurm/submit.sh" first.yaml second.yaml --ranks 2 --set run.steps=30 \
    --set stand_in.ends="0:12:5 1:20:wait") || fail "submit.sh"
  read -r first _ second run_dir <<<"${output//$'\n'/ }"
  job=$first log=runs/first/slurm-$first.log
  until_true "the first run restarted" says "restart 1: "
  job=$second
  [[ $(show JobState) == PENDING && $(show Reason) == Dependency ]] || fail "the second run did not wait"
  touch runs/first/go
  log=$run_dir/slurm-$second.log
  finish COMPLETED 0:0 1
  job=$first
  finish COMPLETED 0:0 1
}

case_row_breaks() {
  local output second
  run_dir=runs/third
  touch "$TRIREME_ROOT"/{third,fourth}.yaml
  output=$("$root/slurm/submit.sh" third.yaml fourth.yaml --ranks 2 --set stand_in.ends=0:12:7) || fail "submit.sh"
  read -r job _ second run_dir <<<"${output//$'\n'/ }"
  finish FAILED 7:0 0
  job=$second
  until_true "the end" ended
  state_is CANCELLED || fail "the second run: $(show JobState)"
}

# shape OPTIONS...: prints "nodes tasks gpus-a-node" of the job that submit.sh makes of them
shape() {
  local name=shape$RANDOM
  start "$name" --hold --ranks "$@"
  echo "$(show NumNodes | cut -d- -f1) $(show NumTasks) $(show TresPerNode)"
  scancel "$job"
}
case_mesh_gives_nodes() {
  run_dir=runs/shape
  local submit=$root/slurm/submit.sh output
  output=$(shape 4)
  [[ $output == "2 4 "* ]] || fail "4 ranks: $output"
  output=$(shape 1 --set run.device=cuda)
  [[ $output == "1 1 "*gpu:1 ]] || fail "1 rank: $output"
  output=$(shape 6 --set run.device=cuda --set parallel.tp=2)
  [[ $output == "3 6 "*gpu:2 ]] || fail "6 ranks: $output"
  # From the mesh only; from nodes; from neither.
  output=$("$submit" "$config" --hold --set run.name=shape --set parallel.dp=3 --set parallel.pp=2)
  job=${output%% *}
  [[ $(show NumNodes | cut -d- -f1) -eq 3 ]] || fail "a mesh of 6: $(show NumNodes) nodes"
  scancel "$job"
  output=$("$submit" "$config" --hold --set run.name=shape -N 4 --set parallel.pp=2)
  job=${output%% *}
  [[ $(show NumTasks) -eq 8 ]] || fail "4 nodes: $(show NumTasks) tasks"
  scancel "$job"
  ! output=$("$submit" "$config" --set run.name=shape 2>&1) || fail "submit.sh accepts an open mesh"
  [[ $output == *--ranks* ]] || fail "an open mesh: $output"
  ! output=$("$submit" "$config" --set run.name=shape --ranks 3 2>&1) || fail "submit.sh accepts ranks that do not fill nodes"
  [[ $output == *"do not fill nodes"* ]] || fail "3 ranks: $output"
  ! output=$("$submit" "$config" --set run.name=shape --set parallel.dp=3 -N 2 2>&1) || fail "submit.sh accepts a wrong mesh"
}

case_plain_sbatch() {
  run_dir=runs/plain
  mkdir -p "$run_dir"
  # In the repository, as its first lines say; the nodes are small here, and the run stays in the test's folder.
  log=$run_dir/slurm-plain.log
  job=$(cd "$root" && env --unset=TRIREME_ROOT sbatch --parsable --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-node=2 \
    --output="$TRIREME_ROOT/$log" slurm/train.sbatch "$config" --set run.name=plain \
    --set run.dir="$TRIREME_ROOT/$run_dir" --set run.steps="$steps" --set checkpoint.every="$every")
  [[ $(show Requeue) == 1 ]] || fail "not to be requeued"
  finish COMPLETED 0:0 0
}

case_preempted() {
  start preempted ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  sbatch --partition=urgent --nodelist="$(show NodeList)" --exclusive --output=/dev/null --wrap='sleep 3' >/dev/null
  expect_log "restart 0: status 75 \(stopped early\)"
  expect_log "restart 1: .*, 0 steps lost"
  finish COMPLETED 0:0 1
}

# Power loss of a node with the batch script, and of one without it.
case_node_dies() {
  local jobs=() dead=() nodes which
  for which in 0 1; do
    start "node_dies$which" --ranks 4 --set run.steps=1000000
    jobs+=("$job")
    until_true "step 7" beyond 6
    mapfile -t nodes < <(nodes_of)
    dead+=("${nodes[which]}")
  done
  for which in 0 1; do
    "$cluster" kill-node "${dead[which]}"
    "$cluster" notice "${dead[which]}"
  done
  for which in 0 1; do
    job=${jobs[which]} run_dir=runs/node_dies$which log=runs/node_dies$which/slurm-$job.log
    expect_log "restart 1: 4 ranks"
    ! says "restart 1: 4 ranks .*starts from step 0," || fail "the checkpoint was not seen"
    until_true "progress" beyond $(($(last_step) + 10))
    [[ $(show Restarts) == 1 ]] && ! nodes_of | grep -qx "${dead[which]}" || fail "restarted wrongly: $(show NodeList)"
    scancel "$job"
  done
  for which in 0 1; do
    "$cluster" start-node "${dead[which]}"
    until_true "${dead[which]} is back" node_is_back "${dead[which]}"
  done
}

# The ranks notice a dead node before Slurm does. A job that is requeued at once may then pend forever.
case_dead_node_noticed_first() {
  local node
  STRAGGLER_SECONDS=5 start noticed_first --ranks 4 --set run.steps=1000000
  until_true "step 7" beyond 6
  node=$(nodes_of | tail -n 1)
  "$cluster" kill-daemon "$node"
  kill -KILL "$(rank_process 3)"
  expect_log "restart 0: a node of .* does not respond; the job is requeued when Slurm has marked the node DOWN"
  state_is RUNNING || fail "the job did not wait: $(show JobState)"
  "$cluster" kill-node "$node"
  "$cluster" notice "$node"
  expect_log "restart 1: 4 ranks"
  until_true "progress" beyond $(($(last_step) + 10))
  ! nodes_of | grep -qx "$node" || fail "restarted on the dead node"
  [[ $(show Restarts) == 1 ]] || fail "$(show Restarts) restarts"
  scancel "$job"
  "$cluster" start-node "$node"
  until_true "$node is back" node_is_back "$node"
}

# A job that is cancelled while the script waits before a requeue stays cancelled.
case_cancelled_while_a_node_is_awaited() {
  local node
  STRAGGLER_SECONDS=5 start cancelled_node --ranks 4 --set run.steps=1000000
  until_true "step 7" beyond 6
  node=$(nodes_of | tail -n 1)
  "$cluster" kill-daemon "$node"
  kill -KILL "$(rank_process 3)"
  expect_log "restart 0: a node of .* does not respond; the job is requeued when Slurm has marked the node DOWN"
  scancel "$job"
  expect_log "stopped: the job was cancelled; the next submission resumes from step" # then the script does nothing more
  "$cluster" kill-node "$node"
  "$cluster" notice "$node"
  "$cluster" start-node "$node"
  until_true "$node is back" node_is_back "$node"
  until_true "the end" ended
  [[ $(show JobState) == CANCELLED && $(show Restarts) == 0 ]] || fail "came back: $(show JobState)"
}
case_cancelled_while_storage_is_awaited() {
  start cancelled_storage --set stand_in.ends=0:12:5 --set stand_in.check=1:3
  expect_log "restart 1: .*job begin .* failed with status 3; retrying for"
  scancel "$job"
  expect_log "restart 1: stopped: the job was cancelled" # then the script does nothing more
  until_true "the end" ended
  [[ $(show JobState) == CANCELLED && $(show Restarts) == 1 ]] || fail "came back: $(show JobState)"
}

# Only slurmd dies: the batch script and its ranks continue while the job runs elsewhere. When they end, they must not
# requeue the job, which they no longer own.
case_orphaned_script() {
  local node orphans
  start orphaned --set run.steps=100000
  until_true "step 7" beyond 6
  node=$(nodes_of)
  orphans=("$(rank_process 0)" "$(rank_process 1)")
  "$cluster" kill-daemon "$node"
  "$cluster" notice "$node"
  expect_log "restart 1: 2 ranks"
  until_true "new ranks" rank_changed "${orphans[0]}"
  # srun has given up these ranks, even with status 0; other versions wait for them.
  kill -KILL "${orphans[@]}" 2>/dev/null || true
  expect_log "restart 0: status [0-9]+ .*the job has already been requeued" # then the script does nothing more
  [[ $(show JobState) == RUNNING && $(show Restarts) == 1 ]] || fail "$(show JobState), $(show Restarts) restarts"
  ! says "restart 0: requeued" || fail "the orphan requeued the job"
  scancel "$job"
  "$cluster" start-node "$node"
  until_true "$node is back" node_is_back "$node"
}
rank_changed() { [[ $(rank_process 0) != "$1" ]]; }

case_controller_dies() {
  STRAGGLER_SECONDS=5 start controller_dies --set run.steps=$((3 * steps)) ${held[@]+"${held[@]}"}
  until_true "step 7" beyond 6
  # slurmctld writes its state a few seconds after a change. If it dies earlier, it has never heard of the job's start,
  # or of its step, which it then cannot end. This change comes after both.
  local changed=$run_dir/changed
  touch "$changed"
  scontrol update JobId="$job" Comment=trains
  until_true "state of the running step" test "$CLUSTER_DIR/state/job_state" -nt "$changed"
  local rank
  rank=$(rank_process 1)
  "$cluster" kill-controller
  kill -KILL "$rank"
  expect_log "task 1: Killed|slurmctld does not respond" # the trainer's end cannot be reported to Slurm now
  "$cluster" start
  expect_log "restart 0: requeued"
  finish COMPLETED 0:0 1
}

# --- All of them --------------------------------------------------------------------------------------------------------
contains() {
  local wanted=$1
  shift
  [[ " $* " == *" $wanted "* ]]
}
wanted() {
  if [[ -n ${TRAINER:-} ]] && ! contains "$1" "${any_trainer[@]}"; then return 1; fi
  ((${#chosen[@]} == 0)) || contains "$1" "${chosen[@]}"
}
chosen=("$@")
for name in ${chosen[@]+"${chosen[@]}"}; do
  contains "$name" "${together[@]}" "${alone[@]}" || {
    echo "no case $name; there are: ${together[*]} ${alone[*]}"
    exit 2
  }
done

"$cluster" start
eval "$("$cluster" env)"
# The stand-in uses no MPI, so it also works without the plugin if that is packaged separately.
if [[ -z ${TRAINER:-} && $(srun --mpi=list 2>&1) != *pmix* ]]; then export SRUN_OPTIONS=--mpi=none; fi
cd "$TRIREME_ROOT"

failures=0 began=$SECONDS
declare -A pids=()
launch() { (
  trap - EXIT
  run_dir=runs/none log=/dev/null job=0
  "case_$1"
) >"$work/$1.out" 2>&1 & pids[$1]=$! background+=("$!"); }
wait_for_case() {
  local status=0
  wait_for "${pids[$1]}" || status=$?
  if ((status == 0)); then
    echo "ok $1 ($((SECONDS - began)) s)"
  else
    echo "not ok $1"
    sed 's/^/    /' "$work/$1.out"
    failures=$((failures + 1))
  fi
}
# One process queries Slurm for the state of all jobs, once per second; waiting cases read its answer. It also ends with
# this shell: one that gets its signal right after its start ignores it.
jobs_now=$work/jobs
(while sleep 1 && kill -0 "$$"; do
  scontrol show job --oneliner >"$jobs_now.new" && mv "$jobs_now.new" "$jobs_now"
done) >/dev/null 2>&1 &
background+=("$!")
for name in "${together[@]}"; do ! wanted "$name" || launch "$name"; done
for name in "${together[@]}"; do ! wanted "$name" || wait_for_case "$name"; done
scancel --user="$(id -un)" --state=PENDING # jobs that were only held
for name in "${alone[@]}"; do
  if wanted "$name"; then
    launch "$name"
    wait_for_case "$name"
  fi
done
echo "$failures failed, $((SECONDS - began)) s"
((failures == 0))
