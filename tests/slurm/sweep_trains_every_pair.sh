#!/usr/bin/env bash
# slurm/examples/sweep.sbatch on a private cluster: each task of the array trains its pair in its own run folder. A
# stopped task is requeued alone and continues from its checkpoint; a task with a mistake or a cancelled one is not
# requeued.
#   sweep_trains_every_pair.sh PATH_OF_trireme
TRAINER=$(realpath "${1:?sweep_trains_every_pair.sh PATH_OF_trireme}")
CLUSTER_NODES=2
# shellcheck source=tests/slurm/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
export TRIREME=$TRAINER TRIREME_ENV=$work/site.sh
# A site's settings must not change the batch script: with -e it would end before it requeues a task.
printf 'set -e\nsource %q\nset -- x y\n' "$root/slurm/env.sh" >"$TRIREME_ENV"
"$cluster" start
eval "$("$cluster" env)"
if [[ $(srun --mpi=list 2>&1) != *pmix* ]]; then
  echo "skipped: this Slurm has no PMIx plugin"
  exit 77
fi
cd "$TRIREME_ROOT"
for i in {1..500}; do echo "$i green bottles hanging on the wall"; done >text.txt
"$TRIREME" data prepare --tokenizer bytes --output text text.txt >/dev/null 2>&1
cat >tiny.yaml <<'YAML'
run: {steps: 1000000, sample_tokens: 0, eval_batches: 0, device: cpu}
model: {layers: 2, hidden: 32, heads: 2, vocab: 257, seq_len: 32, norm: rmsnorm, bias: false}
data: {sources: [text], tokenizer: bytes, global_batch: 4}
metrics: {log_every: 100}
YAML
export PEAKS='1e-3 3e-3' BATCHES=4
# Task 0 has no end, task 1 begins on request, task 2 is not a pair.
run_dir=runs/sweep-lr1e-3-batch4
array=$(sbatch --parsable --array=0-2 --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 \
  "$root/slurm/examples/sweep.sbatch" tiny.yaml) || fail "sbatch"
task() { job=${array}_$1; }
task 0
until_true "task 0 trains" beyond 0
task 2
finish FAILED 2:0 0
grep -q "there is no pair for task 2" "sweep-${array}_2.log" || fail "task 2 says $(cat "sweep-${array}_2.log")"
run_dir=runs/sweep-lr3e-3-batch4
until_true "task 1 trains" beyond 0

task 0
run_dir=runs/sweep-lr1e-3-batch4
scancel --batch --signal=USR1 "$job"
restarted() { [[ $(show Restarts) == 1 ]]; }
until_true "task 0 is requeued" restarted
grep -q 'status 75' "sweep-${array}_0.log" || fail "$(cat "sweep-${array}_0.log")"
[[ -n $(compgen -G "$run_dir/checkpoints/step_*/manifest.json") ]] || fail "no checkpoint"
task 1
if [[ $(show Restarts) != 0 ]] || ! state_is RUNNING; then fail "task 1 was requeued too"; fi

# Its ranks still save a checkpoint and exit with 75.
scancel "$job"
finish CANCELLED 75:0 0
grep -q 'status 75' "sweep-${array}_1.log" || fail "$(cat "sweep-${array}_1.log")"
task 0
scancel "$array"

# A task whose ranks are ended by a signal before they handle it is also requeued.
printf '#!/usr/bin/env bash\nkill -USR1 $$\n' >early
chmod +x early
array=$(TRIREME=$PWD/early sbatch --parsable --array=0 --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 \
  "$root/slurm/examples/sweep.sbatch" tiny.yaml) || fail "sbatch"
task 0
until_true "the task that ended early is requeued" restarted
grep -q 'status 138' "sweep-${array}_0.log" || fail "$(cat "sweep-${array}_0.log")"
scancel "$array"

# From another folder, by a relative path, without variables: the files above the script are used or named.
unset TRIREME TRIREME_ENV
mkdir -p repo "my folder"
cp -r "$root/slurm" repo/slurm
cd "my folder"
cp ../tiny.yaml .
sweep() { # NAME OPTION...
  job=$(sbatch --parsable --array=0 --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 --output="$1.log" \
    "${@:2}" ../repo/slurm/examples/sweep.sbatch tiny.yaml --set run.steps=1)_0 || fail "sbatch"
}
sweep none
finish FAILED 2:0 0
grep -q "cannot run trireme; set TRIREME" none.log || fail "$(cat none.log)"
sweep no_settings --export=ALL,TRIREME_ENV=gone.sh
finish FAILED 2:0 0
grep -q "cannot read the settings file .*/my folder/gone.sh" no_settings.log || fail "$(cat no_settings.log)"
mkdir -p ../repo/build/bin
printf '#!/usr/bin/env bash\necho "found $*"\n' >../repo/build/bin/trireme
chmod +x ../repo/build/bin/trireme
sweep found
finish COMPLETED 0:0 0
grep -q "found train tiny.yaml .*--set run.steps=1" found.log || fail "$(cat found.log)"
echo '[[ -n ${NOT_SET_ANYWHERE:-} ]] && export Y=1' >site.sh
sweep last_line --export=ALL,TRIREME_ENV=site.sh
finish COMPLETED 0:0 0
grep -q "warning: the settings file .*/my folder/site.sh ended with status 1" last_line.log ||
  fail "$(cat last_line.log)"
grep -q "found train" last_line.log || fail "$(cat last_line.log)"
echo 'exit 1' >site.sh
sweep ends --export=ALL,TRIREME_ENV=site.sh
finish FAILED 1:0 0
grep -q "the shell ended in or after the settings file .*/my folder/site.sh" ends.log || fail "$(cat ends.log)"
echo "all well"
