#!/usr/bin/env bash
# slurm/train.sbatch, slurm/submit.sh and the sweep with simulated Slurm commands: a start that fails before it trains is
# requeued within RESTART_BUDGET only, whatever fails; settings files of all kinds affect the trainer's environment and
# nothing else; the log and submit.sh name what is wrong. No Slurm is needed.
#   budget_holds_without_slurm.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_make_checkpoint
# shellcheck disable=SC2016 # texts of scripts are not expanded here
set -uo pipefail
root=$(realpath "${1:?budget_holds_without_slurm.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_make_checkpoint}")
real=$(realpath "${2:?budget_holds_without_slurm.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_make_checkpoint}")
make_checkpoint=$(realpath "${3:?budget_holds_without_slurm.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_make_checkpoint}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() {
  echo "FAILED: $*"
  sed 's/^/    /' log
  failures=$((failures + 1))
}

# --- Simulated commands. State: the files requeued (one line each), comment, states (JOB STATE), path, end ----------
mkdir stub
cat >stub/scontrol <<'SH'
#!/usr/bin/env bash
case "$*" in
  "show job --oneliner "*)
    echo "JobId=7 JobState=RUNNING Restarts=${SLURM_RESTART_COUNT:-0} Requeue=1 ExcNodeList=(null)" \
      "SubmitTime=2026-01-01T00:00:00 StartTime=2026-01-01T00:01:00 EndTime=$(cat "$SIM/end")" ;;
  "show job "*) echo "   Command=$(cat "$SIM/path")" ;;
  "show hostnames "*) echo node0 ;;
  "requeue "*)
    [[ ! -e $SIM/refuses ]] || { rm "$SIM/refuses"; exit 1; }
    echo "$*" >>"$SIM/requeued" ;;
  "update "*Comment=*)
    [[ ! -e $SIM/no_comment ]] || exit 1
    all=$*
    echo "${all#*Comment=}" >"$SIM/comment" ;;
esac
SH
cat >stub/squeue <<'SH'
#!/usr/bin/env bash
if [[ $* == *%k* ]]; then cat "$SIM/comment"; fi
if [[ $* == *%T* ]]; then
  state=$(cat "$SIM/states")
  [[ $* != *%i* || -z $state ]] || state="${state%% *} ${state#* }"
  [[ $* == *%i* ]] || state=${state#* }
  [[ -z $state ]] || echo "$state"
  [[ ! -e $SIM/states.next ]] || mv "$SIM/states.next" "$SIM/states"
fi
SH
cat >stub/sinfo <<'SH'
#!/usr/bin/env bash
[[ $* == *%c* ]] && echo "normal* 4"
exit 0
SH
cat >stub/sbatch <<'SH'
#!/usr/bin/env bash
sleep 0.5
printf '%s\n' "$@" >"$SIM/sbatch.arguments"
echo x >>"$SIM/sbatch.calls"
echo "41 PENDING" >"$SIM/states"
echo 41
SH
# srun simulates the trainer: it records its environment, limits and umask, and ends with the status in the file status.
cat >stub/srun <<'SH'
#!/usr/bin/env bash
[[ $* == *" train "* ]] || exit 0
{ env; echo "umask=$(umask) core=$(ulimit -S -c) arguments=$*"; } >"$SIM/trained"
if [[ -e $SIM/batch ]]; then # it is stopped while it starts its ranks, and loses the first signal
  trap '((++signals == 1)) || exit 75' USR1
  kill -USR1 "$(cat "$SIM/batch")"
  for _ in {1..200}; do sleep 0.1; done
fi
if [[ -e $SIM/saves ]]; then
  mkdir -p "$SIM/run/checkpoints"
  "$MAKE_CHECKPOINT" "$SIM/run/checkpoints" "$((${SLURM_RESTART_COUNT:-0} + 1))"
fi
if [[ -e $SIM/damages ]]; then
  mkdir -p "$SIM/run/checkpoints/step_0000000$((${SLURM_RESTART_COUNT:-0} + 1))"
  echo "{}" >"$SIM/run/checkpoints/step_0000000$((${SLURM_RESTART_COUNT:-0} + 1))/manifest.json"
fi
exit "$(cat "$SIM/status")"
SH
cat >stub/trireme <<'SH'
#!/usr/bin/env bash
[[ $1 != job ]] || exec "$REAL" "$@"
[[ $1 == check ]] || exit 2
[[ -r $2 ]] || { echo "$2: no such file"; exit 2; }
for argument in "$@"; do
  case $argument in
    run.name) echo run ;;
    run.dir) echo "${RUN_DIR:-run}" ;;
    run.device) echo cpu ;;
    checkpoint.dir) echo run/checkpoints ;;
    parallel.tp | parallel.pp) echo 1 ;;
    parallel.dp | cluster.ranks_per_node) echo 2 ;;
  esac
done
SH
chmod +x stub/*
export SIM=$work REAL=$real MAKE_CHECKPOINT=$make_checkpoint PATH=$work/stub:$PATH TRIREME=$work/stub/trireme
echo "run: {name: run, dir: run, device: cpu}" >config.yaml

# fresh: creates a job in the state of its first submission.
fresh() {
  rm -rf run requeued trained no_comment states.next sbatch.calls
  : >states
  echo "(null)" >comment
  echo 0 >status
  echo 2026-01-02T00:00:00 >end
  echo "$root/slurm/train.sbatch" >path
}
# start RESTART [VARIABLE=VALUE...]: runs the batch script as this start of the job, without the variables named in
# `without`; sets status.
without=''
start() {
  local restart=$1
  shift
  rm -f trained
  : >requeued
  status=0
  timeout 60 env SLURM_JOB_ID=7 ${restart:+SLURM_RESTART_COUNT=$restart} SLURM_SUBMIT_DIR="$work" \
    SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=node0 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_ON_NODE=4 \
    SUPERVISE=0 TRIREME_ENV="$work/site.sh" STORAGE_SECONDS=0 CONTROLLER_SECONDS=1 RESTART_BUDGET=2 "$@" \
    env ${without:+-u ${without// / -u }} bash "${script:-$root/slurm/train.sbatch}" config.yaml >log 2>&1 || status=$?
}
requeues() { wc -l <requeued; }
says() { grep -qE -- "$1" log; }
# ends STATUS REQUEUES WHAT: checks how the last start ended.
ends() { ((status == $1 && $(requeues) == $2)) || fail "$3: status $status, $(requeues) requeues; expected $1 and $2"; }

# --- Settings files -----------------------------------------------------------------------------------------------
# refused NAME TEXT: checks that such a file stops the first start; later ones are requeued within the budget.
refused() {
  local restart
  fresh
  printf '%s\n' "$2" >site.sh
  start ""
  ends 2 0 "$1, first start"
  says "stopped: the settings file $work/site.sh " || fail "$1: the log does not name the file"
  [[ ! -e trained ]] || fail "$1: has trained"
  mkdir -p run
  for restart in ${3:-}; do
    start "$restart"
    ends 2 $((restart < 2)) "$1, restart $restart"
    says "the settings file $work/site.sh " || fail "$1, restart $restart: the log does not name the file"
  done
}
refused "exit 1" 'echo "no module"; exit 1' "1 2 3 50"
says "stopped: 50 restarts in a row made no progress" || fail "the budget is not named"
refused "exit 0" 'exit 0'
refused "set -e and a failure" $'set -e\nfalse' "1 2"
refused "set -u and an unset variable" $'set -u\necho $NOT_SET_ANYWHERE'
refused "a syntax error" 'if then'
refused "exec" 'exec true'
refused "line ends of Windows" $'export SITE=here\r' 1
says "CR LF, .* convert it: sed -i" || fail "CR LF is not named"
refused "a kill of its shell" 'kill -KILL $$'
refused "a trap and an exit" $'trap - EXIT\ntrap "" TERM\nexit 4'

# accepted NAME TEXT [PATTERN]: checks that such a file does not affect the batch script, and that SITE=here and a line
# with PATTERN reach the trainer.
accepted() {
  fresh
  printf '%s\nexport SITE=here\n' "$2" >site.sh
  start ""
  ends 0 0 "$1"
  grep -qx "SITE=here" trained 2>/dev/null || fail "$1: SITE does not reach the trainer"
  says "finished at step 0" || fail "$1: not finished"
  [[ -z ${3:-} ]] || grep -qE "$3" trained || fail "$1: the trainer lacks $3"
  # A fault after it is still requeued.
  echo 5 >status
  start ""
  ends 5 1 "$1, with a fault"
}
# ended NAME STATUS TEXT: such a file runs to its end and returns STATUS. The job trains, and its log has a warning.
ended() {
  fresh
  printf 'export SITE=here\n%s\n' "$3" >site.sh
  start ""
  ends 0 0 "$1"
  grep -qx "SITE=here" trained 2>/dev/null || fail "$1: SITE does not reach the trainer"
  says "warning: the settings file $work/site.sh .* ended with status $2 " || fail "$1: no warning in the log"
}
ended "a last line that tests a variable" 1 '[[ -n ${NOT_SET_ANYWHERE:-} ]] && export Y=1'
ended "return 3" 3 'return 3'
ended "a module that is missing" 127 'no_such_module_command load openmpi'
accepted "set -e" 'set -e'
says "warning: the settings file" && fail "a warning about a settings file that ends with status 0"
accepted "set -eux, noclobber, noglob, extdebug" $'set -euxCf\nshopt -s extdebug failglob nullglob'
accepted "traps" $'trap "exit 3" EXIT\ntrap "exit 3" ERR TERM USR1\ntrap : DEBUG RETURN'
accepted "names of the script" $'config=x job=y restart=z state=1 home=/ status=9 run_dir=/ decided=yes RESTART_BUDGET=z
say() { exit 1; }; again() { exit 1; }; leave() { exit 1; }
source() { false; }; printf() { exit 1; }; exec() { exit 1; }
export config job restart state home status run_dir RESTART_BUDGET; set -- a b c'
accepted "read-only names" $'readonly config=x status=1 record=2 job=3'
accepted "cd, IFS, output" $'cd /\nIFS=0123456789abcdef\nexec >/dev/null 2>&1'
accepted "another PATH" $'export PATH='"$work/stub"':$PATH:/opt/site/bin' '^PATH=.*:/opt/site/bin$'
accepted "umask, limits, options of srun" $'umask 027\nulimit -S -c 0\nexport SRUN_OPTIONS="--site-option=1 --other"' \
  '^umask=0027 core=0 arguments=.* --site-option=1 --other '
accepted "a process that stays" 'sleep 100 & echo $! >stays'
kill "$(cat stays)"
accepted "a variable that it removes" 'unset STRAGGLER_SECONDS; export LONG="a  b=c"' '^LONG=a  b=c$'
fresh
printf 'export SITE=here\n' >site.sh
start "" BASH_ENV=/dev/null TMPDIR=/no/such/folder state=x site_env=y records=z job=9 said=1 stands=2 text=3
ends 0 0 "an environment with a missing TMPDIR and names of the script"

# A wait of more than a minute is named; here the pauses of the script are short.
fresh
mkdir fast
printf '#!/usr/bin/env bash\nexec /bin/sleep 0.01\n' >fast/sleep
chmod +x fast/sleep
echo 'until grep -q "waits for" "$SIM/log"; do /bin/sleep 0.1; done' >site.sh
start "" PATH="$work/fast:$PATH"
ends 0 0 "a settings file that takes minutes"
says "waits for the settings file $work/site.sh" || fail "the wait has no message"
rm -r fast
fresh
start "" TRIREME_ENV=$'/no\e[31m\nfile'
ends 2 0 "a name with control characters"
says "settings file /no[?]\[31m[?]file .*cannot be read" || fail "control characters reach the log"

# A settings file that hangs when the signal for a checkpoint arrives.
fresh
echo 'kill -USR1 $PPID; exec sleep 1000' >site.sh
start ""
ends 2 1 "a settings file that hangs"
says "signal USR1: draining" || fail "the signal had no effect"
# Storage that hangs while the script reads the file.
fresh
mkdir slow
cat >slow/grep <<'SH'
#!/usr/bin/env bash
[[ $2 == $'\r$' ]] || exec /bin/grep "$@"
kill -USR1 $PPID
exec sleep 1000
SH
chmod +x slow/grep
echo 'export SITE=here' >site.sh
start "" PATH="$work/slow:$PATH"
# The shell that would apply the file then is ended; if its start misses the signal, `job begin` is.
[[ $status -ne 143 ]] || status=2
ends 2 1 "a settings file that cannot be read at present"
says "signal USR1: draining" || fail "the signal had no effect while the file is read"
rm -r slow

fresh
echo 'echo $PPID >"$SIM/batch"' >site.sh
start ""
ends 75 1 "a signal that srun has lost"
rm batch

fresh
rm site.sh
start ""
ends 2 0 "no settings file"
says "stopped: the settings file $work/site.sh .*cannot be read" || fail "a missing settings file is not named"
start 1
ends 2 1 "no settings file at a restart"
start 2
ends 2 0 "no settings file, budget used up"

# The sweep passes its signal on in the same way, and has the same budget.
sweep() { # RESTART [VARIABLE=VALUE...]
  rm -f trained
  : >requeued
  status=0
  timeout 60 env SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=0 ${1:+SLURM_RESTART_COUNT=$1} \
    SLURM_SUBMIT_DIR="$work" SLURM_CPUS_PER_TASK=1 SLURM_NTASKS=2 \
    TRIREME_ENV="$work/site.sh" RESTART_BUDGET=2 "${@:2}" bash "$root/slurm/examples/sweep.sbatch" config.yaml \
    >log 2>&1 || status=$?
}
fresh
echo 'echo $PPID >"$SIM/batch"' >site.sh
sweep ""
ends 75 1 "a sweep whose signal srun has lost"
rm batch
echo "export SITE=here; echo loaded" >site.sh
for code in 75 5 138; do
  fresh
  echo "$code" >status
  for restart in "" 1 2 50; do
    sweep "$restart"
    ends "$code" $((${restart:-0} < 2)) "a sweep without progress, restart $restart"
  done
  says "task 0: stopped: 50 restarts in a row made no newer checkpoint" || fail "the budget of a sweep is not named"
done
fresh
echo 75 >status
touch saves
for restart in 0 1 2 3 4; do
  sweep "$restart"
  ends 75 1 "a sweep that saves, restart $restart"
done
[[ $(cat comment) == trireme-progress:4 ]] || fail "the comment of a sweep: $(cat comment)"
rm saves
for restart in 5 6; do
  sweep "$restart"
  ends 75 $((restart < 6)) "a sweep that no longer saves, restart $restart"
done
sweep 0 RESTART_BUDGET=two
ends 2 0 "a sweep with RESTART_BUDGET=two"

# --- Variables that are missing or wrong --------------------------------------------------------------------------
fresh
echo "export SITE=here" >site.sh
for restart in "" 1 50; do
  without="SLURM_NTASKS SLURM_NTASKS_PER_NODE" start "$restart"
  ends 2 0 "no number of tasks, restart $restart"
  says "stopped: .*--ntasks-per-node" || fail "the remedy for a number of tasks is missing"
done
without=SLURM_NTASKS start ""
ends 0 0 "tasks of a node alone"
for wrong in RESTART_BUDGET=three SPARES=-1 SUPERVISE=yes DRAIN_SECONDS=2m STORAGE_SECONDS=08; do
  for restart in "" 50; do
    start "$restart" "$wrong"
    ends 2 0 "$wrong"
    says "stopped: .* $wrong" || fail "$wrong is not named"
  done
done
start "" SPARES=1 SUPERVISE=1
ends 2 0 "no node is left"
says "SPARES=1 of 1 node leaves" || fail "SPARES of one node"
start "" SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3
ends 2 0 "a task of a job array"
says "stopped: tasks of a job array" || fail "a job array is not named"
for name in SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST SLURM_CPUS_ON_NODE SLURM_SUBMIT_DIR; do
  without=$name start ""
  ((status == 0 && $(requeues) == 0)) || fail "$name is not set: status $status"
done
# A fault of the script itself, in a copy: after any number of restarts the budget holds.
sed 's/^settings=("\$@")$/: "$NOT_SET_ANYWHERE"/' "$root/slurm/train.sbatch" >broken.sbatch
cmp -s broken.sbatch "$root/slurm/train.sbatch" && fail "the copy is not broken"
fresh
script=$work/broken.sbatch
for restart in "" 1 2 50; do
  start "$restart"
  (($(requeues) == (${restart:-0} < 2) && status != 0)) ||
    fail "a broken script, restart $restart: $(requeues) requeues"
  says "the batch script failed with status" || fail "a broken script does not say so"
  says "NOT_SET_ANYWHERE: unbound" || fail "a broken script does not say why"
done
script=''

# --- The count survives -------------------------------------------------------------------------------------------
# A run that is preempted often and saves each time is never stopped; then a settings file breaks.
for how in "" no_comment; do
  fresh
  echo 75 >status
  [[ -z $how ]] || touch "$how"
  touch saves
  start 0
  for restart in 1 2 3 4 5 6; do
    start "$restart"
    ends 75 1 "drained, restart $restart${how:+, $how}"
  done
  rm saves
  grep -qx progress_restart=6 run/slurm.state || fail "the state file has $(cat run/slurm.state)"
  [[ -n $how || $(cat comment) == trireme-progress:6 ]] || fail "comment: $(cat comment)"
  echo "exit 1" >site.sh
  start 7
  # Without the comment all restarts count, so the job stops too early rather than never.
  if [[ -z $how ]]; then ends 2 1 "a settings file that breaks later"; else ends 2 0 "a settings file, no comment"; fi
  start 8
  ends 2 0 "a settings file that breaks later, budget used up"
  echo "export SITE=here" >site.sh
done
# Each newer checkpoint restores the whole budget. Without one the job stops, and so does a further start of it.
fresh
echo 5 >status
touch saves
for restart in 0 1 2; do
  start "$restart" RESTART_BUDGET=1
  ends 5 1 "a newer checkpoint, restart $restart"
done
rm saves
start 3 RESTART_BUDGET=1
ends 5 0 "no newer checkpoint"
says "stopped: 1 restart in a row made no checkpoint after step 3, .* resumes from step 3" || fail "no budget is named"
start 4 RESTART_BUDGET=1
ends 8 0 "a start whose budget is exhausted"
[[ ! -e trained ]] || fail "trains without a budget"
# A folder with a manifest that no run can load is not progress.
fresh
echo 75 >status
touch damages
for restart in 0 1 2; do start "$restart"; done
ends 75 0 "damaged checkpoints"
says "stopped: 2 restarts in a row made no checkpoint after step 0" || fail "damaged checkpoints count"
rm damages
# The run folder cannot be written: the comment counts. A file in its place simulates that: root may write anywhere.
fresh
echo 5 >status
touch run
for restart in 0 1 2 3; do
  start "$restart"
  (($(requeues) <= (restart < 2))) || fail "an unwritable run folder, restart $restart: $(requeues) requeues"
done

# A state file that cannot be written does not end the run: a folder has the name of its temporary file.
fresh
echo 5 >status
mkdir -p run/slurm.state.7.0.tmp
start ""
ends 5 1 "a state file that cannot be written"
says "the state file .* could not be written" || fail "an unwritable state file is not named"
# The run folder is gone, so nothing shows that this job has ever begun.
fresh
for restart in 1 2; do
  start "$restart"
  ends 3 $((restart < 2)) "no run folder, restart $restart"
  says "run holds no files of this job's earlier starts" || fail "a run folder that is gone is not named"
done
says "stopped: 2 restarts in a row made no progress" || fail "the budget is not named without a run folder"
[[ ! -e run ]] || fail "a new run folder replaces the one that is gone"
# Statuses of the trainer that a restart would not change.
for code in 2 3 7; do
  fresh
  echo "$code" >status
  start ""
  ends "$code" 0 "status $code of the trainer"
  says "stopped: a restart would fail in the same way" || fail "status $code: no reason in the log"
done

# Neither a damaged state file nor an unexpected comment ends the count or the script.
fresh
echo 5 >status
mkdir run
printf 'job=7\nbest_step=08x\nprogress_restart=99\nhang_count=-1\nleft_out=a b\n=\n\x01=2\n' >run/slurm.state
echo "trireme-progress:4711 trireme-progress:x" >comment
start 1
ends 5 1 "a damaged state file"
start 2
ends 5 0 "a damaged state file, budget used up"

# --- Without Slurm's commands, as in a container's image: the batch script requeues, with the same budget -------------
cat >stub/container <<'SH'
#!/usr/bin/env bash
PATH=/nowhere exec "$REAL" "$@"
SH
chmod +x stub/container
fresh
echo 5 >status
for restart in 0 1 2; do
  TRIREME=$work/stub/container start "$restart"
  ends 5 $((restart < 2)) "a container, restart $restart"
done
says "stopped: 2 restarts in a row made no progress" || fail "the budget of a container is not named"
fresh
touch saves
for restart in 0 1 2 3; do
  echo 5 >status
  TRIREME=$work/stub/container start "$restart"
  ends 5 1 "a container that saves, restart $restart"
done
rm saves

# --- Messages about waiting, a short time limit and relative paths ------------------------------------------
fresh
mkdir run
echo job=6 >run/slurm.state
echo "6 COMPLETING" >states
: >states.next
start ""
ends 0 0 "a job that waits"
says "waiting up to 600 s for job 6 .*COMPLETING" || fail "the log has no message while it waits"
fresh
echo 2026-01-01T00:03:00 >end
start ""
ends 0 0 "a short time limit"
says "time limit of 120 s .*--time" || fail "a short time limit is not named"
! grep -q "time limit" <(fresh && start "" && cat log) || fail "a long time limit is called short"
mkdir -p "other place/slurm" "other place/build/bin" && cp "$root"/slurm/{env.sh,train.sbatch} "other place/slurm"
cp stub/trireme "other place/build/bin"
fresh
echo "../$(basename "$work")/other place/slurm/train.sbatch config.yaml" >path
without="TRIREME_ENV TRIREME" start ""
ends 0 0 "a relative path with a blank"
grep -q "other place/build/bin/trireme train" trained || fail "not the executable of that folder: $(cat trained)"

# --- submit.sh --------------------------------------------------------------------------------------------------
submit() {
  status=0
  "$root/slurm/submit.sh" config.yaml "$@" >log 2>&1 || status=$?
}
refuses() { # TEXT ARGUMENTS...
  local text=$1
  shift
  submit "$@"
  if ((status != 2)) || [[ -e sbatch.calls ]]; then fail "submit.sh $*: status $status"; fi
  says "$text" || fail "submit.sh $* does not say '$text'"
}
fresh
for name in no-such-file.sh /; do TRIREME_ENV=$name refuses "TRIREME_ENV=.*$name: cannot read"; done
echo "if then" >bad.sh
TRIREME_ENV=bad.sh refuses "bad.sh: .*syntax error"
printf 'export A=1\r\n' >bad.sh
TRIREME_ENV=bad.sh refuses "bad.sh: .*CR LF.* sed -i"
for words in --no-data "--comment b.yaml" --hold -H "--set run.steps=1" --mem=1G "-N 1"; do
  # shellcheck disable=SC2086 # words
  refuses "c.yaml: name the configs before the options" $words c.yaml
done
RUN_DIR=$'run\nother' refuses "config.yaml: run.dir contains a line break"
TRIREME_ENV=$'no\e[31m' refuses "no[?]\[31m: cannot read"
refuses "one run folder" --array=0-1
RESTART_BUDGET=three refuses "RESTART_BUDGET=three: expected a whole number"
TRIREME=/no/such/trireme refuses "cannot run /no/such/trireme"
for time in 2 2:00 2:59 0:01:30 --time=1; do refuses "--time=.* leaves no time to train" "--time=${time#--time=}"; done
refuses "leaves no time" -t 2
refuses "leaves no time" -t2
refuses "leaves no time" --time 0-0:03
refuses "leaves no time" --time=10:00 --signal=B:USR1@600
SBATCH_TIMELIMIT=1 refuses "leaves no time"
for time in 4 3:01 1:00:00 0-1 1-0:00:01 0 UNLIMITED; do
  fresh
  submit --time="$time"
  ((status == 0)) || fail "--time=$time is refused"
done
fresh
submit --time=2 --signal=B:USR1@30
((status == 0)) || fail "a short lead is refused"
# The word after an option of sbatch is its value, whatever it looks like.
fresh
submit --comment x.yaml -J y.yml -p gpu --time 1:00:00 --set run.name=z.yaml
((status == 0)) || fail "values that look like configs are refused: $(<log)"
[[ $(paste -sd' ' sbatch.arguments) == *" --comment x.yaml -J y.yml -pgpu --time=1:00:00 "* ]] ||
  fail "options: $(paste -sd' ' sbatch.arguments)"
# TRIREME is relative to the current folder, configs to TRIREME_ROOT.
fresh
mkdir elsewhere && cp config.yaml elsewhere
TRIREME=stub/trireme TRIREME_ROOT=$work/elsewhere submit
((status == 0)) || fail "a relative TRIREME with TRIREME_ROOT: status $status"
# Two at once: one is refused, and so is a later one until the job has ended.
fresh
for i in 1 2; do "$root/slurm/submit.sh" config.yaml >"out.$i" 2>&1 & done
wait
[[ $(wc -l <sbatch.calls) -eq 1 ]] || fail "two jobs of one run: $(cat out.*)"
grep -q "run is the run folder of job 41, which is PENDING" out.1 out.2 || fail "refused without a reason: $(cat out.*)"
rm sbatch.calls
refuses "job 41, which is PENDING"
submit --dependency=afterany:41
((status == 0)) || fail "--dependency is refused"
: >states
submit
((status == 0)) || fail "refused though the job is gone"
# Shapes for other clusters (slurm/README.md, "On your cluster").
fresh
submit --set cluster.ranks_per_node=2 --spares 1
[[ $(paste -sd' ' sbatch.arguments) == *"--nodes=2 --ntasks=4 --ntasks-per-node=2 --gpus-per-node=0"* ]] ||
  fail "shape: $(paste -sd' ' sbatch.arguments)"

echo "$failures failed"
((failures == 0))
