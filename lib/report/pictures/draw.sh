#!/usr/bin/env bash
# Draws the pictures of the project's README, all by the executable: the mesh by `check`, a step by `simulate`, the loss
# of the quick start by `report`, from what `make run` left in its metrics.jsonl (quickstart_losses.txt, "step loss"
# lines). Run it after a change of what they show, and commit them; a test holds them equal to what it draws, except for
# the times of the step.
#   draw.sh [FOLDER]      where they go; this folder, if not given
# TRIREME names the executable, if it is not that of build/.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
trireme=$(realpath "${TRIREME:-$root/build/bin/trireme}")
folder=$(realpath "${1:-$here}")

# 32 ranks on four nodes, all three axes in use; few enough to be drawn whole.
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
