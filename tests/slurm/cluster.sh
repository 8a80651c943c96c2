#!/usr/bin/env bash
# A private Slurm cluster on this machine, for tests: munged, slurmctld and a few slurmd from the distribution's
# packages, without systemd, cgroups or a database. It has its own munge key and socket, ports, state and logs, all in
# one folder, and touches no other Slurm or munge of the machine.
#
#   cluster.sh start             start what does not run yet; returns when every node is idle
#   cluster.sh stop              cancel jobs, end every process of the cluster, remove its state (logs stay)
#   cluster.sh status            daemons, nodes, jobs
#   cluster.sh env               shell settings for sbatch, squeue and Open MPI: eval "$(cluster.sh env)"
#   cluster.sh kill-node NODE    a power cut: slurmd, its step daemons and all their tasks
#   cluster.sh kill-daemon NODE  slurmd alone; its tasks live on
#   cluster.sh notice NODE       marks a dead node as DOWN, as Slurm does after SlurmdTimeout; its jobs are requeued
#   cluster.sh start-node NODE   bring node0, node1 ... back
#   cluster.sh kill-controller   slurmctld; `start` brings it back with its jobs
#
# CLUSTER_DIR    everything is in here; keep it short, sockets are in it   (/tmp/trireme-slurm-UID)
# CLUSTER_NODES  number of slurmd                                          (3)
# CLUSTER_QUIET  number of nodes, the last ones, that only the partition "quiet" has      (0)
# CLUSTER_CPUS   CPUs that a node claims to have                           (8)
# CLUSTER_GPUS   GPUs that a node claims to have, at most 4                (2)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

dir=${CLUSTER_DIR:-/tmp/trireme-slurm-$(id -u)}
num_nodes=${CLUSTER_NODES:-3}
num_quiet=${CLUSTER_QUIET:-0}
cpus=${CLUSTER_CPUS:-8}
gpus=${CLUSTER_GPUS:-2}
last=$((num_nodes - 1))
export SLURM_CONF=$dir/slurm.conf

# A separate host name keeps the shared memory of a node's ranks apart from that of the other nodes.
own_hostname=no
if unshare --uts true 2>/dev/null; then own_hostname=yes; fi

die() {
  echo "cluster.sh: $*" >&2
  exit 1
}

pid_in() { cat "$1" 2>/dev/null || true; }

# A zombie counts as ended: if nothing reaps orphans, it stays forever. So does another program with the process id of a
# dead daemon.
alive() {
  local stat
  [[ -n ${1:-} ]] && stat=$(cat "/proc/$1/stat" 2>/dev/null) && [[ ${stat##*) } != Z* && $stat == *"("@(munged|slurm)* ]]
}

# await SECONDS WHAT COMMAND...
await() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < deadline)) || {
      echo "cluster.sh: timed out waiting for: $what" >&2
      return 1
    }
    sleep 0.1
  done
}

# Prints the first of 1 + num_nodes consecutive ports on which nothing listens.
free_ports() {
  local base port busy
  busy=$(awk 'FNR > 1 {split($2, a, ":"); print a[2]}' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  for _ in {1..100}; do
    base=$((20000 + RANDOM % 12000))
    for ((port = base; port <= base + num_nodes; ++port)); do
      if grep -qix "$(printf %04x "$port")" <<<"$busy"; then continue 2; fi
    done
    echo "$base"
    return
  done
  die "no free ports between 20000 and 32000"
}

write_config() {
  local user port megabytes tracking=linuxproc
  user=$(id -un)
  [[ -s $dir/port ]] || free_ports >"$dir/port"
  port=$(cat "$dir/port")
  megabytes=$(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  [[ $(id -u) -eq 0 ]] || tracking=pgid # linuxproc reads files that belong to root
  # Any character device serves as a GPU: Slurm only counts and assigns them.
  local devices=(/dev/null /dev/zero /dev/full /dev/random) device
  ((gpus <= ${#devices[@]})) || die "at most ${#devices[@]} GPUs a node"
  for device in "${devices[@]:0:gpus}"; do
    echo "NodeName=node[0-$last] Name=gpu File=$device Flags=nvidia_gpu_env"
  done >"$dir/gres.conf"
  local shared="node[0-$((last - num_quiet))]" quiet=''
  ((num_quiet == 0)) ||
    quiet="PartitionName=quiet Nodes=node[$((num_nodes - num_quiet))-$last] MaxTime=INFINITE State=UP PriorityTier=1"
  cat >"$SLURM_CONF" <<CONF
ClusterName=trireme
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: cred_expire + 1 seconds, 121 by default. A launch that
# takes longer than cred_expire fails, so a slow machine needs some seconds.
AuthInfo=socket=$dir/munge/socket,cred_expire=15
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/pids/slurmctld
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdPidFile=$dir/pids/%n
SlurmdLogFile=$dir/log/%n.log
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
ProctrackType=proctrack/$tracking
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
# The default values: a daemon that merely waits for a core is not considered dead. Tests mark dead nodes with 'notice'.
SlurmctldTimeout=300
SlurmdTimeout=300
MessageTimeout=30
TCPTimeout=10
# From the first signal to the last, for a time limit, scancel and requeue: the time for the batch script to react.
KillWait=30
InactiveLimit=0
WaitTime=0
MinJobAge=3600
ReturnToService=1
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PriorityType=priority/basic
# The partition "urgent" preempts jobs of the partition "normal", which are requeued.
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node[0-$last] NodeHostname=node[0-$last] NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + num_nodes)) CPUs=$cpus RealMemory=$megabytes Gres=gpu:$gpus State=UNKNOWN
PartitionName=normal Nodes=$shared Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=urgent Nodes=$shared MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
$quiet
CONF
}

# SLURMD_NODENAME identifies the daemon and its step daemons; Slurm sets it for the tasks (node_processes).
start_node() {
  local node=$1
  ! alive "$(pid_in "$dir/pids/$node")" || return 0
  mkdir -p "$dir/spool/$node" "$dir/tmp/$node"
  # shellcheck disable=SC2016 # $1 and $2 are the inner shell's
  local inner='hostname "$1"; exec slurmd -N "$1" -f "$2"' into=(unshare --uts)
  if [[ $own_hostname == no ]]; then inner=${inner#*; } into=(); fi
  SLURMD_NODENAME=$node "${into[@]}" sh -c "$inner" sh "$node" "$SLURM_CONF" </dev/null >>"$dir/log/$node.out" 2>&1 ||
    die "slurmd of $node does not start: $dir/log/$node.out, $dir/log/$node.log"
}

# Lists every process of a node, or of all nodes: identified by two variables, one of which names this folder.
node_processes() {
  local environ text node=$'\n'SLURMD_NODENAME=
  [[ -z ${1:-} ]] || node+=$1$'\n' # node1 is not node10
  for environ in /proc/[0-9]*/environ; do
    text=$({ tr '\0' '\n' <"$environ"; } 2>/dev/null) || continue
    if [[ $'\n'$text$'\n' == *$'\n'"SLURM_CONF=$SLURM_CONF"$'\n'* &&
      $'\n'$text$'\n' == *"$node"* ]]; then
      environ=${environ#/proc/}
      echo "${environ%/environ}"
    fi
  done
}

# Repeats until none is left: a process may start another one meanwhile.
kill_node() {
  local pids
  for _ in {1..600}; do
    mapfile -t pids < <(node_processes "$1")
    if ((${#pids[@]} == 0)); then
      [[ -z $1 ]] || rm -f "$dir/pids/$1"
      return 0
    fi
    kill -KILL "${pids[@]}" 2>/dev/null || true
    sleep 0.1
  done
  die "processes of ${1:-a node} do not end: ${pids[*]}"
}

# "urgent" and "normal" have the same nodes.
all_idle() {
  local count
  count=$(sinfo -h -t idle,mixed,alloc -o '%P %D' 2>/dev/null | awk '$1 !~ /^urgent/ {n += $2} END {print n + 0}')
  ((count == num_nodes))
}
no_jobs() { [[ -z $(squeue -h 2>/dev/null) ]]; }

start() {
  local tool node
  for tool in munged slurmctld slurmd sbatch; do
    command -v "$tool" >/dev/null || die "$tool is not installed (Debian, Ubuntu: munge slurmctld slurmd slurm-client)"
  done
  mkdir -p "$dir"/{munge,state,pids,log,spool,tmp}
  chmod 755 "$dir" "$dir/munge"
  if ! alive "$(pid_in "$dir/munge/pid")"; then
    [[ -s $dir/munge/key ]] || (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
    # --force: the folder may be inside one that all users can write to.
    munged --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
      --seed-file="$dir/munge/seed" --log-file="$dir/log/munged.log" 2>>"$dir/log/munged.out" ||
      die "munged does not start: $dir/log/munged.out"
  fi
  [[ -s $SLURM_CONF ]] || write_config
  if ! alive "$(pid_in "$dir/pids/slurmctld")"; then
    slurmctld -f "$SLURM_CONF" </dev/null >>"$dir/log/slurmctld.out" 2>&1 ||
      die "slurmctld does not start: $dir/log/slurmctld.out, $dir/log/slurmctld.log"
  fi
  for ((node = 0; node < num_nodes; ++node)); do start_node "node$node"; done
  if ! await 600 "every node idle" all_idle; then
    sinfo -N >&2 || true
    tail -n 5 "$dir"/log/*.log >&2
    exit 1
  fi
}

# end PIDFILE: ends the process, first with SIGTERM, then with SIGKILL.
end() {
  local pid
  pid=$(pid_in "$1")
  alive "$pid" || return 0
  kill "$pid"
  for _ in {1..200}; do
    alive "$pid" || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
}

stop() {
  local node
  if alive "$(pid_in "$dir/pids/slurmctld")"; then
    scancel --user="$(id -un)" 2>/dev/null || true
    await 15 "jobs cancelled" no_jobs || true
  fi
  for ((node = 0; node < num_nodes; ++node)); do end "$dir/pids/node$node"; done
  end "$dir/pids/slurmctld"
  [[ ! -s $SLURM_CONF ]] || kill_node "" # step daemons and tasks that outlived their slurmd
  end "$dir/munge/pid"
  rm -rf "${dir:?}"/{munge,state,pids,spool,tmp,port,slurm.conf,gres.conf}
}

status() {
  local file state
  for file in "$dir/munge/pid" "$dir"/pids/*; do
    state=dead
    ! alive "$(pid_in "$file")" || state=alive
    echo "${file#"$dir"/} $(pid_in "$file") $state"
  done
  sinfo -N -o '%N %P %T %E'
  squeue -o '%i %j %T %r %N'
}

print_env() {
  echo "export SLURM_CONF='$SLURM_CONF' PATH=\"\$PATH:/usr/sbin:/sbin\""
  # For many ranks on few cores: the ring is the fence that still works then, and waiting ranks yield.
  echo "export SLURM_PMIX_FENCE=ring OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none"
  echo "export OMPI_MCA_btl_tcp_if_include=lo OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1"
  # Without separate host names the shared memory of the nodes would collide.
  [[ $own_hostname == yes ]] || echo "export OMPI_MCA_btl=self,tcp"
  [[ $(id -u) -ne 0 ]] || echo "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

command=${1:-}
node=${2:-}
case $command in
  kill-node | kill-daemon | notice | start-node) [[ $node =~ ^node[0-9]+$ ]] || die "$command needs a node: node0 .. node$last" ;;
esac
case $command in
  start | stop | status) "$command" ;;
  env) print_env ;;
  kill-node) kill_node "$node" ;;
  kill-daemon)
    kill -KILL "$(pid_in "$dir/pids/$node")"
    rm -f "$dir/pids/$node"
    ;;
  notice) scontrol update NodeName="$node" State=DOWN Reason="not responding" ;;
  start-node)
    start_node "$node"
    scontrol update NodeName="$node" State=RESUME
    ;;
  kill-controller) kill -KILL "$(pid_in "$dir/pids/slurmctld")" ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 2
    ;;
esac
