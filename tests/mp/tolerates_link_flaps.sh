#!/usr/bin/env bash
# A supervised run on three nodes that are network namespaces of this machine, with ranks that communicate through their
# cards: a link that loses frames, is slow, or is down for less than the timeouts is tolerated; if it stays down, its
# node is replaced, and a spare continues from the newest checkpoint. Finally the losses equal those of a run without a
# network.
#
#   tolerates_link_flaps.sh SOURCE_FOLDER PATH_OF_trireme
#
# Exit status 77 and "skipped" if no namespaces are available; they need root, or a system that lets users create them.
#
# FLAP     seconds that the link is down once                                     (4)
# SILENT   silent_seconds of supervise.conf before the link stays down            (6)
if [[ ${IN_NAMESPACES:-} != yes ]]; then
  user=()
  (($(id -u) == 0)) || user=(--user --map-root-user)
  into=(unshare "${user[@]}" --net --mount --uts --pid --fork --mount-proc --kill-child)
  if ! command -v ip >/dev/null || ! command -v tc >/dev/null ||
    ! "${into[@]}" sh -c 'mount -t tmpfs none /run && ip netns add x' 2>/dev/null; then
    echo "skipped: network namespaces need ip and tc (Debian, Ubuntu: iproute2), and root or namespaces of users"
    exit 77
  fi
  IN_NAMESPACES=yes exec "${into[@]}" bash "$0" "$@" # all namespaces end with their last process
fi
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# Three nodes on a switch that also connects this machine, with all names and addresses.
mount -t tmpfs none /run
ip link set lo up
ip link add switch type bridge
ip link set switch up
for i in 0 1 2; do
  ip netns add "node$i"
  ip link add "port$i" type veth peer name eth0 netns "node$i"
  ip link set "port$i" master switch up
  ip -n "node$i" address add "10.77.0.1$i/24" dev eth0
  ip -n "node$i" link set eth0 up
  ip -n "node$i" link set lo up
  echo "10.77.0.1$i node$i"
done >hosts
echo "127.0.0.1 localhost" >>hosts
mount --bind hosts /etc/hosts

# Replaces `ssh NODE COMMAND`. A process knows its node by the host name and by the name that Slurm would set.
cat >on <<'SH'
#!/usr/bin/env bash
node=$1
shift
SLURMD_NODENAME=$node exec ip netns exec "$node" unshare --uts sh -c 'hostname $0; eval "$*"' "$node" "$@"
SH
cat >ranks <<SH
#!/usr/bin/env bash
IFS=, read -ra nodes <<<"\$1"
shift
exec "$mpirun" --host "\$(printf '%s:2,' "\${nodes[@]}")" -n \$((2 * \${#nodes[@]})) --mca plm_rsh_agent "$PWD/on" \\
  --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 "\$@"
SH
chmod +x on ranks

make_text
cat >tiny.yaml <<'YAML'
run: {name: flaps, device: cpu, steps: 1000000, eval_batches: 0, sample_tokens: 0}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 64}
data: {sources: [text], global_batch: 8, tokenizer: bytes}
parallel: {pp: 2, dp: 2}
lr: {peak: 1e-2, decay_steps: 1000}
checkpoint: {every: 20}
YAML
./on node0 exec "$trireme" supervise tiny.yaml --ranks 4 --hosts node0,node1,node2 --spares 1 \
  --launcher "'$PWD/ranks {nodes}'" --agent-launcher "'$PWD/on {node}'" --set run.dir="$PWD/run" >supervise.txt 2>&1 &
driver=$!

last_step() { tail -n 1 run/metrics.jsonl 2>/dev/null | sed -nE 's/.*"step":([0-9]+),.*/\1/p'; }
beyond() { (($(last_step || true) + 0 > $1)); }
attempts() { grep -c '"kind":"attempt_start"' run/events.jsonl || true; }
excluded_nodes() { "$trireme" supervise run --nodes | awk '{print $1}'; }
link() { ip link set port1 "$1"; }
goes_on() { # WHAT: checks that steps are done, no attempt was restarted and no node excluded
  until_true beyond $(($(last_step || true) + 20)) || finish
  if [[ $(attempts) -ne 1 || -n $(excluded_nodes) ]]; then
    fail "$1 was not tolerated" "$(<supervise.txt)"
    finish
  fi
  echo "$1: tolerated, step $(last_step) ($SECONDS s)"
}

until_true beyond 10 || finish
if tc qdisc add dev port1 root netem delay 20ms 5ms loss 3% 2>/dev/null; then
  goes_on "3 % of all frames lost, 20 ms of delay"
  tc qdisc del dev port1 root
elif [[ -w /dev/net/tun ]] && command -v python3 >/dev/null; then
  # Without netem: the node's port moves to its own switch, and a program is the cable between both.
  ip link add far type bridge
  ip link set far up
  ip tuntap add dev cable0 mode tap
  ip tuntap add dev cable1 mode tap
  python3 "$source_dir/tests/mp/slow_link.py" cable0 cable1 20 5 3 &
  cable=$!
  ip link set cable0 master switch up
  ip link set cable1 master far up
  ip link set port1 master far
  goes_on "3 % of all frames lost, 20 ms of delay, by a cable that is a program"
  kill -0 "$cable" || fail "the cable has ended"
  ip link set port1 master switch
  kill "$cable"
else
  echo "skipped: loss and delay need tc netem in the kernel, or /dev/net/tun and python3"
fi
tc qdisc add dev port1 root tbf rate 2mbit burst 16kbit latency 200ms # frames wait, and the excess is lost
goes_on "a link of 2 Mbit/s"
tc qdisc del dev port1 root
for _ in {1..20}; do
  link down
  sleep 0.05
  link up
  sleep 0.15
done
goes_on "a link that is down for a quarter of the time"
link down
sleep "${FLAP:-4}"
link up
goes_on "a link that is down for ${FLAP:-4} s"

# The link stays down. From its next attempt on the run has an end.
echo "silent_seconds: ${SILENT:-6}  # while it runs" >run/supervise.conf
sleep 6 # it is reread every five seconds
link down
down=$SECONDS
sleep 1 # data in transit on the other nodes has then arrived
steps=$(($(last_step) + 100))
sed -i "s/steps: 1000000/steps: $steps/" tiny.yaml
again() { [[ $(attempts) -eq 2 ]] && grep -q '"kind":"start".*"step":[1-9]' <(tail -n 5 run/events.jsonl); }
until_true again || finish
echo "a link that stays down: on a spare $((SECONDS - down)) s later"
link up
cut_off() { # prints the ranks of the first attempt that are still alive on the isolated node
  local process
  for process in $(pgrep -f 'trireme train tiny.yaml'); do
    ! grep -qzx SLURMD_NODENAME=node1 "/proc/$process/environ" || echo "$process"
  done 2>/dev/null
}
none_is_left() { [[ -z $(cut_off) ]]; }
until_true none_is_left || finish
status=0
wait "$driver" || status=$?
[[ $status -eq 0 ]] || fail "supervise ended with $status" "$(<supervise.txt)"
[[ $(excluded_nodes) == node1 ]] || fail "excluded: $(excluded_nodes)" "$(<supervise.txt)"
run 0 "$trireme" supervise run --nodes
has "node1  until "
run 0 "$trireme" supervise run --nodes --clear node1
run 2 "$trireme" supervise run --nodes --clear node1
[[ -z $(excluded_nodes) ]] || fail "node1 is still excluded"

train 0 "$PWD/whole" 4
[[ $(curve run | wc -l) -eq $steps ]] || fail "$(curve run | wc -l) steps of $steps"
cmp <(curve run) <(curve whole) ||
  fail "the losses differ from those without a network" "$(diff <(curve run) <(curve whole) | head)"
finish
