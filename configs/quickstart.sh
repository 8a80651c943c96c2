#!/usr/bin/env bash
# The quick start: the King James Bible as text, tokenized to bytes, then eight MPI ranks on this machine's CPU train
# configs/quickstart.yaml (dp 2 x tp 2 x pp 2). Arguments go to `trireme train`, e.g. --set run.steps=50.
set -euo pipefail
cd "$(dirname "$0")/.."
trireme=build/bin/trireme
data=runs/quickstart-data

mkdir -p "$data"
if [[ ! -s $data/kjv.bin ]]; then
  # 4.3 MB of public-domain English.
  bible gen1:1-rev22:21 >"$data/kjv.txt"
  "$trireme" data prepare --format text --tokenizer bytes --output "$data/kjv" "$data/kjv.txt"
fi

status=0
.ci/mpirun -n 8 "$trireme" train configs/quickstart.yaml "$@" || status=$?
if [[ $status -eq 0 ]]; then
  echo "make run: PASSED; the run is in runs/quickstart (metrics.jsonl, log.txt, config.yaml)"
else
  echo "make run: FAILED with exit status $status"
fi
exit "$status"
