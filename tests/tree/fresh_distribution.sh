#!/usr/bin/env bash
# Runs the README's commands for newcomers in a fresh distribution, created by debootstrap: make run, make install, the
# installed files, make uninstall. Needs root and a mirror of packages; skipped without either.
#   fresh_distribution.sh SUITE [MIRROR]     such as bookworm, trixie or noble; the mirror's address: the argument, or
#                                            DEBIAN_MIRROR and UBUNTU_MIRROR by the suite; skipped without it
# FOLDER   its location; an existing one is continued and kept (default: a temporary one, which is removed)
# KEYRING  verifies the mirror if this system has no key for it (Ubuntu's on Debian)
# STEPS    of the quick start (default: all of them)
set -euo pipefail
suite=$1 source_dir=$(cd "$(dirname "$0")/../.." && pwd)
scripts=/usr/share/debootstrap/scripts
case $suite in
  bookworm | trixie | sid) mirror=${2:-${DEBIAN_MIRROR:-}} components=main script=$scripts/sid ;;
  *) mirror=${2:-${UBUNTU_MIRROR:-}} components=main,universe script=$scripts/gutsy ;; # used for all Ubuntu releases
esac
skip() {
  echo "skipped: $*"
  exit 77
}
fail() {
  echo "FAILED: $suite: $*"
  exit 1
}
[[ $(id -u) -eq 0 ]] || skip "not root"
[[ -n $mirror ]] || skip "no mirror for $suite; set DEBIAN_MIRROR or UBUNTU_MIRROR"
for needed in debootstrap curl git; do command -v "$needed" >/dev/null || skip "no $needed"; done
curl -sfI --max-time 20 "$mirror/dists/$suite/Release" >/dev/null || skip "no $suite from $mirror"

folder=${FOLDER:-$(mktemp -d)}
mounted=()
leave() {
  # Unmounts in reverse order.
  for ((i = ${#mounted[@]} - 1; i >= 0; i--)); do umount "$folder/${mounted[i]}"; done
  [[ -n ${FOLDER:-} ]] || rm -rf --one-file-system "$folder"
}
trap leave EXIT
if [[ ! -e $folder/root/trireme ]]; then
  echo "$suite from $mirror"
  options=("--variant=minbase" "--components=$components")
  [[ -z ${KEYRING:-} ]] || options+=("--keyring=$KEYRING")
  debootstrap "${options[@]}" "$suite" "$folder" "$mirror" "$script" >"$folder.log" || fail "$(tail -5 "$folder.log")"
  rm -f "$folder.log"
  echo "deb $mirror $suite ${components/,/ }" >"$folder/etc/apt/sources.list"
  mkdir -p "$folder/root/trireme.part" # an earlier attempt may have been interrupted
  git -C "$source_dir" archive HEAD | tar -x -C "$folder/root/trireme.part"
  mv "$folder/root/trireme.part" "$folder/root/trireme"
fi
cp /etc/resolv.conf "$folder/etc/resolv.conf"
mount_there() {
  mount "${@:2}" "$folder/$1"
  mounted+=("$1")
}
mount_there proc -t proc proc
mount_there dev --bind /dev
mount_there dev/shm --bind /dev/shm

# Runs a command in a user's shell there, in the clone.
there() {
  chroot "$folder" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    bash -c "cd /root/trireme && $*"
}
files() { there "find /usr/local | sort"; }

there "apt-get update && apt-get install -y --no-install-recommends make man-db bash-completion" >/dev/null 2>&1 ||
  fail "make, man and bash-completion can't be installed"
before=$(files)
if [[ -z ${STEPS:-} ]]; then
  there "make run"
else
  there "make build && TRIREME=build/bin/trireme bash configs/quickstart.sh --set run.steps=$STEPS"
fi
there "make install" >/dev/null || fail "make install"
there "cd / && trireme --version" || fail "trireme --version"
# Uses a file, because output cut off by a closed pipe must not count as a failure.
there "man trireme >/tmp/page 2>/dev/null && grep -q 'trireme data prepare' /tmp/page" || fail "man trireme"
there "source /usr/share/bash-completion/bash_completion; _completion_loader trireme || true; complete -p trireme" ||
  fail "bash has no completion for trireme"
there "mkdir -p /tmp/own && cd /tmp/own && bash /usr/local/share/trireme/configs/quickstart.sh --set run.steps=3" ||
  fail "the installed quick start"
there "cd /tmp/own && trireme config new --model quickstart --gpus 8 --data runs/quickstart-data/kjv --output my.yaml &&
  trireme check my.yaml >/dev/null" || fail "trireme config new"
there "make uninstall" || fail "make uninstall"
[[ $(files) == "$before" ]] || fail "left behind: $(diff <(echo "$before") <(files))"
there "! command -v trireme" || fail "trireme is still installed"
echo "$suite: all well"
