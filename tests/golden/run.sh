#!/usr/bin/env bash
# Trains a config on one rank and compares its loss curve with PyTorch's and with the golden one.
#   run.sh CONFIG OUT [--set section.key=value ...]
# Environment: BUILD      the built tree (default: build)
#              TOKENS     prefix of prepared token files; without it, the King James Bible is prepared
#              TOKENIZER  the tokenizer of TOKENS: bytes (default), or the path of a SentencePiece model
#              PYTHON     an interpreter with PyTorch (default: the first that tests/python_with finds), for the
#                         reference
#              TRIREME_EXPECT_CLIENTS  if set, a missing PyTorch is a failure
#              TOLERANCE  largest relative difference of a step's loss (default: 0.01); with MEANS=1, of means
#                         over ten steps; `measured` derives it from the spread of PyTorch runs
#                         that add in another order or, without PyTorch, of runs with other microbatches
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: run.sh CONFIG OUT [--set section.key=value ...]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
config=$1 out=$2
shift 2
build=${BUILD:-$root/build} tokenizer=${TOKENIZER:-bytes} tolerance=${TOLERANCE:-0.01} means=()
[[ ${MEANS:-0} == 1 ]] && means=(--means)
compare() {
  local bound=(--tolerance "$tolerance" ${means[@]+"${means[@]}"})
  [[ $tolerance != measured ]] || bound=(--spread "${spread[@]}")
  "${PYTHON:-python3}" "$here/compare.py" "$@" "${bound[@]}" || status=1
}
trireme=$build/bin/trireme
mkdir -p "$out"

tokens=${TOKENS:-$out/data/kjv}
if [[ -z ${TOKENS:-} && ! -s $tokens.bin ]]; then
  # 4.3 MB of public-domain English.
  mkdir -p "$out/data"
  bible gen1:1-rev22:21 >"$tokens.txt"
  "$trireme" data prepare --format text --tokenizer "$tokenizer" --output "$tokens" "$tokens.txt"
fi

# Uses one rank, whatever layout the config has. The caller's settings come later and win.
settings=(--set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=1 --set parallel.chunks=1
  --set parallel.schedule=1f1b --set run.sample_tokens=0 --set run.eval_batches=0
  --set "data.sources=[\"$tokens\"]" --set "data.tokenizer=$tokenizer" "$@")
"$build/bin/export_run" "$config" "$out" "${settings[@]}" --set "run.dir=$out/train"
run() {
  rm -rf "${out:?}/$1" # a complete run of an earlier call would not train again
  "$root/slurm/mpirun" -n 1 "$trireme" train "$config" "${settings[@]}" --set "run.dir=$out/$1" "${@:2}"
}
run train

# Writes the curve in the form of the golden files.
fingerprint=$(sed -n 's/^ "fingerprint": "\(.*\)",$/\1/p' "$out/run.json")
name=$(sed -n 's/^ "name": "\(.*\)",$/\1/p' "$out/run.json")
curve() { sed -n 's/^{"step":\([0-9]*\),.*,"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$out/$1/metrics.jsonl"; }
{
  echo "# run $fingerprint"
  echo "# step loss grad_norm"
  curve train
} >"$out/trireme.txt"

status=0 compared=no
if python=$("$root/tests/python_with" numpy torch); then
  spread=("$out/reference.txt") parts=()
  if [[ $tolerance == measured ]]; then
    spread+=("$out/parts_2.txt" "$out/parts_3.txt")
    parts=(--parts "2=${spread[1]}" "3=${spread[2]}")
  fi
  "$python" "$here/reference.py" "$out" "$out/reference.txt" ${parts[@]+"${parts[@]}"} >"$out/reference.log"
  echo "PyTorch:"
  compare "$out/trireme.txt" "$out/reference.txt"
elif [[ -n ${TRIREME_EXPECT_CLIENTS:-} ]]; then
  echo "TRIREME_EXPECT_CLIENTS is set, but PyTorch is missing" >&2
  exit 1
fi

golden=$here/$name.txt
if [[ ! -s $golden ]]; then
  echo "golden curve: $name has none"
elif [[ $(head -n 1 "$golden") != "# run $fingerprint"* ]]; then
  echo "golden curve: not compared, since that of $name has other settings or other data"
else
  if [[ -z $python && $tolerance == measured ]]; then
    spread=("$out/trireme.txt")
    for samples in 1 4; do
      run "samples_$samples" --set "data.micro_batch=$samples"
      spread+=("$out/samples_$samples.txt")
      curve "samples_$samples" >"${spread[-1]}"
    done
  fi
  echo "golden curve:"
  compare "$out/trireme.txt" "$golden"
  compared=yes
fi
if [[ -z $python ]]; then
  if [[ $compared == yes ]]; then echo "no PyTorch: compared only with the golden curve"; else echo "skipped: no PyTorch"; fi
fi
exit "$status"
