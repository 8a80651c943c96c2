#!/usr/bin/env bash
# Draws the pictures of the project's README with the executable: `check` draws the mesh, `simulate` a step, and
# `report` the loss of the quick start. The losses are in quickstart_losses.txt: "step loss" lines from the
# metrics.jsonl of `make run`. Run this script after a change of what the pictures show, and commit them. A test
# compares them with the script's output, except for the times of the step.
#   draw.sh [FOLDER]      writes to FOLDER (default: this folder)
# TRIREME names the executable (default: that of build/).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
trireme=$(realpath "${TRIREME:-$root/build/bin/trireme}")
folder=$(realpath "${1:-$here}")

# Uses 32 ranks on four nodes and all three axes; the mesh is small enough to be drawn completely.
layout=(--ranks 32)
for setting in parallel.{tp=4,pp=4,chunks=2,schedule=interleaved} data.global_batch=32; do
  layout+=(--set "$setting")
done
"$trireme" check "$root/configs/gpt_13b.yaml" "${layout[@]}" --no-data --svg "$folder/mesh.svg" >/dev/null
"$trireme" simulate "$root/configs/gpt_13b.yaml" "${layout[@]}" --cluster "$root/configs/clusters/h200.yaml" \
  --svg "$folder/step.svg" >/dev/null

run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
printf 'run:\n  name: quickstart\n' >"$run/config.yaml"
while read -r step loss validation; do
  if [[ $loss == validation ]]; then
    echo "{\"step\":$step,\"validation_loss\":$validation}"
  else
    echo "{\"step\":$step,\"loss\":$loss,\"step_ms\":1}"
  fi
done <"$here/quickstart_losses.txt" >"$run/metrics.jsonl"
"$trireme" report "$run" --pictures "$folder"
