#!/usr/bin/env bash
# The quick start: tokenizes the King James Bible to bytes, then trains configs/quickstart.yaml (dp 2 x tp 2 x pp 2)
# with eight MPI ranks on this machine's CPU. Arguments are passed to `trireme train`, for example --set run.steps=50.
# Output is written to runs/ of the current folder. TRIREME names the executable if it is not the one that was built or
# installed together with this script.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here") # of the repository or, installed, PREFIX/share/trireme
trireme=${TRIREME:-$root/build/bin/trireme}
[[ -n ${TRIREME:-} || -x $trireme ]] || trireme=$root/../../bin/trireme
if [[ ! -x $trireme ]]; then
  echo "quickstart.sh: the executable $trireme does not exist; build it with \`make build\`" >&2
  exit 2
fi
data=runs/quickstart-data

mkdir -p "$data"
if [[ ! -s $data/kjv.bin ]]; then
  # 4.3 MB of public-domain English.
  bible gen1:1-rev22:21 >"$data/kjv.txt"
  "$trireme" data prepare --format text --tokenizer bytes --output "$data/kjv" "$data/kjv.txt"
fi

rm -rf runs/quickstart/checkpoints # start over instead of resuming an earlier run
status=0
"$root/slurm/mpirun" -n 8 "$trireme" train "$here/quickstart.yaml" "$@" || status=$?
if [[ $status -eq 0 ]]; then
  echo "the run is in runs/quickstart (metrics.jsonl, log.txt, config.yaml, checkpoints)"
else
  echo "the quick start failed with exit status $status; the messages above say why"
fi
exit "$status"
