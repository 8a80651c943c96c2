#!/usr/bin/env bash
# A stand-in for trireme in the tests of slurm/train.sbatch: it does no work, maintains the run folder like the trainer,
# and ends as configured. One process per rank, without MPI.
#
#   trainer.sh check CONFIG [--ranks N] [--set F=V]... --get F...    prints fields
#   trainer.sh check CONFIG [--ranks N] [--set F=V]... [--no-data]   finds stand_in.data, or ends with status 3
#   trainer.sh train CONFIG [--set F=V]...                           under srun
#   trainer.sh job begin CONFIG [--set F=V]..., job end ...          those of trireme (REAL_TRIREME)
#
# The config file only has to exist; fields come from --set. In addition to trireme's own:
#   stand_in.step_ms   length of a step
#   stand_in.ends      "RESTART:STEP:END ...": where and how attempts end before the last step. END is an exit
#                      status, `deaf` (signals are ignored from here on) or `wait` (no further step until there is a
#                      signal, or a file `go` in the run folder)
#   stand_in.check     RESTART:STATUS: `check` and `job begin` end with that status in that start of the job
#   stand_in.data      the data file, which must exist
set -euo pipefail

declare -A field=(
  [run.name]='' [run.dir]='' [run.steps]=40 [run.device]=cpu
  [parallel.tp]=1 [parallel.pp]=1 [parallel.dp]=0 [cluster.ranks_per_node]=2
  [checkpoint.dir]='' [checkpoint.every]=5
  [stand_in.step_ms]=100 [stand_in.ends]='' [stand_in.check]='' [stand_in.data]=''
)

mistake() {
  echo "$1" >&2
  exit 2
}

if [[ ${1:?} == job ]]; then
  [[ ${2:?} == begin ]] || exec "$REAL_TRIREME" "$@"
  shift
fi
command=${1:?} config=${2:?} ranks=${SLURM_NTASKS:-0} get=() look=yes
shift 2
while (($#)); do
  case $1 in
    --set)
      [[ -n ${field[${2%%=*}]+known} ]] || mistake "--set $2: unknown key"
      field[${2%%=*}]=${2#*=}
      ;;
    --ranks) ranks=$2 ;;
    --get) get+=("$2") look=no ;;
    --no-data)
      look=no
      shift
      continue
      ;;
    *) mistake "unknown argument $1" ;;
  esac
  shift 2
done
[[ -r $config ]] || mistake "$config: no such file"
if [[ $command == begin ]]; then
  if [[ ${field[stand_in.check]} == "${SLURM_RESTART_COUNT:-0}:"* ]]; then exit "${field[stand_in.check]#*:}"; fi
  : "${field[run.name]:=$(basename "$config" .yaml)}"
  exec "$REAL_TRIREME" job begin /dev/null --set run.dir="${field[run.dir]:-runs/${field[run.name]}}" \
    --set run.device=cpu --set checkpoint.dir="${field[checkpoint.dir]}"
fi
tp=${field[parallel.tp]} pp=${field[parallel.pp]} dp=${field[parallel.dp]}
((ranks)) || ranks=$((tp * pp * dp))
((ranks)) || mistake "check needs --ranks N"
((dp)) || dp=$((ranks / (tp * pp)))
((tp * pp * dp == ranks)) || mistake "tp $tp x pp $pp x dp $dp is not $ranks ranks"
field[parallel.dp]=$dp
: "${field[run.name]:=$(basename "$config" .yaml)}"
: "${field[run.dir]:=runs/${field[run.name]}}"
: "${field[checkpoint.dir]:=${field[run.dir]}/checkpoints}"

if [[ $command == check ]]; then
  if [[ ${field[stand_in.check]} == "${SLURM_RESTART_COUNT:-0}:"* ]]; then exit "${field[stand_in.check]#*:}"; fi
  if [[ $look == yes && -n ${field[stand_in.data]} && ! -e ${field[stand_in.data]} ]]; then
    echo "${field[stand_in.data]}: no such file" >&2
    exit 3
  fi
  for name in ${get[@]+"${get[@]}"}; do
    [[ -n ${field[$name]+known} ]] || mistake "$name: no such field"
    echo "${field[$name]}"
  done
  exit 0
fi

run_dir=${field[run.dir]} checkpoints=${field[checkpoint.dir]}
restart=${SLURM_RESTART_COUNT:-0}
verdict=$run_dir/verdict.$SLURM_JOB_ID.$restart # rank 0 writes it, the others follow
drain=no
for name in TERM USR1 USR2; do
  # shellcheck disable=SC2064
  trap "drain=$name" "$name"
done
# A signal to the whole job also hits child processes, so their work is repeated.
make_folder() { until mkdir -p "$1"; do rest 0.1; done; }
rename() { until mv "$1" "$2" || [[ ! -e $1 ]]; do rest 0.1; done; }
exec {never}<> <(:)
# Sleeps without a process, which a signal to the whole job would also hit.
rest() { read -rt "$1" -u "$never" _ || true; }
make_folder "$checkpoints"

# The k-th rank writes its process id to rank.k, which tests use to kill it. From here on signals are handled.
echo "$$ $SLURMD_NODENAME" >"$run_dir/rank.$SLURM_PROCID"
ready=$run_dir/ready.$SLURM_JOB_ID.$restart
: >"$ready.$SLURM_PROCID"

if ((SLURM_PROCID > 0)); then
  until [[ -s $verdict ]]; do rest 0.1; done
  end=$(<"$verdict")
  trap '' TERM USR1 USR2 # bash resets its traps before it has ended
  exit "$end"
fi

save() { until "$MAKE_CHECKPOINT" "$checkpoints" "$1"; do rest 0.1; done; }
end_all() {
  echo "$1" >"$verdict.tmp"
  rename "$verdict.tmp" "$verdict"
  trap '' TERM USR1 USR2 # bash resets its traps before it has ended
  exit "$1"
}

# As in MPI_Init: no rank trains before all are present.
for ((rank = 1; rank < SLURM_NTASKS; ++rank)); do
  until [[ -e $ready.$rank ]]; do rest 0.1; done
done

step=0
if [[ -s $checkpoints/latest ]]; then
  latest=$(<"$checkpoints/latest")
  step=$((10#${latest#step_}))
fi
echo "stand-in: restart $restart from step $step"
now() { date +%s.%N; }
event() { # KIND FIELDS
  printf '{"time":%s,"attempt":"%s","job":"%s","kind":"%s","rank":0,"host":"%s","text":"","fields":{%s}}\n' \
    "$(now)" "$SLURM_JOB_ID-$restart" "$SLURM_JOB_ID" "$1" "$SLURMD_NODENAME" "$2"
}
metrics_bytes=$(stat -c %s "$run_dir/metrics.jsonl" 2>/dev/null || echo 0)
{
  event begin "\"began\":$(now)"
  event start "\"ranks\":$SLURM_NTASKS,\"step\":$step,\"steps\":${field[run.steps]},\"metrics_bytes\":$metrics_bytes"
} >>"$run_dir/events.jsonl"
steps=${field[run.steps]} every=${field[checkpoint.every]} step_ms=${field[stand_in.step_ms]}
printf -v seconds '%d.%03d' $((step_ms / 1000)) $((step_ms % 1000))
while true; do
  for end in ${field[stand_in.ends]}; do
    if [[ $end == "$restart:$step:deaf" ]]; then
      trap '' TERM USR1 USR2
    elif [[ $end == "$restart:$step:wait" ]]; then
      until [[ $drain != no || -e $run_dir/go ]]; do rest 0.1; done
    elif [[ $end == "$restart:$step:"* ]]; then
      end_all "${end##*:}"
    fi
  done
  if [[ $drain != no ]]; then
    echo "stand-in: $drain, saved step $step"
    save "$step"
    end_all 75
  fi
  ((step < steps)) || break
  rest "$seconds"
  step=$((step + 1))
  printf '{"step":%d,"samples":%d,"loss":1.5,"step_ms":%d,"time":%s}\n' \
    "$step" $((step * 8)) "$step_ms" "$EPOCHREALTIME" >>"$run_dir/metrics.jsonl"
  ((step % every)) || save "$step"
done
save "$step"
end_all 0
