#!/usr/bin/env bash
# The scripts of slurm/examples work as documented: those for fabrics pass their settings to a job, and no config field
# or variable of NCCL is misspelt; the workstation's script trains; an array's tasks train each in its own folder.
#   examples.sh SOURCE_FOLDER PATH_OF_trireme
# shellcheck source=tests/mp/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/../mp/checks.sh"
examples=${source_dir:?}/slurm/examples
export TRIREME=${trireme:?}
make_text
cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 3, sample_tokens: 0, eval_batches: 0, device: cpu}
model: {layers: 2, hidden: 32, heads: 2, vocab: 257, seq_len: 32, norm: rmsnorm, bias: false}
data: {sources: [text], global_batch: 16}
YAML

echo "bash and shellcheck report no errors"
for script in "$examples"/* "$source_dir"/slurm/*.s* "$source_dir"/slurm/{mpirun,install-packages}; do
  bash -n "$script" || fail "$script"
done
if command -v shellcheck >/dev/null; then
  (cd "$source_dir" && shellcheck -x slurm/examples/* slurm/*.s* slurm/mpirun slurm/install-packages) ||
    fail "shellcheck"
else
  echo "skipped: no shellcheck"
fi

# A cluster that only records.
mkdir stub
cat >stub/sbatch <<'SH'
#!/usr/bin/env bash
{ env && printf 'argument %s\n' "$@"; } >job
echo 1
SH
printf '#!/usr/bin/env bash\necho "gpu* 64"\n' >stub/sinfo
chmod +x stub/*
library=$(ldconfig -p 2>/dev/null | sed -n 's/.* => \(.*libnccl\.so[.0-9]*\)$/\1/p' | head -n 1)
for name in infiniband roce efa; do
  echo "$name: the job has the settings, except for those that were set already"
  rm -f job
  run 0 env -u LD_LIBRARY_PATH PATH="$folder/stub:$PATH" NCCL_SOCKET_IFNAME=mine \
    "$examples/$name.sh" tiny.yaml --ranks 16 --time=1:00:00
  [[ -s job ]] || { fail "no job" "$output" && continue; }
  defaults=$(sed -nE 's/^default ([A-Z_a-z0-9]+) "?([^ "]*( [^ "#]+)?)"?( # <--)?$/\1=\2/p' "$examples/$name.sh")
  [[ $(wc -l <<<"$defaults") == "$(grep -c '^default ' "$examples/$name.sh")" ]] ||
    fail "a default is not recognised" "$defaults"
  while read -r setting; do
    [[ $setting != NCCL_SOCKET_IFNAME=* ]] || setting=NCCL_SOCKET_IFNAME=mine
    grep -qxF -- "$setting" job || fail "the job lacks $setting" "$(grep -F "${setting%%=*}" job)"
    [[ -z $library || $setting != NCCL_* ]] || grep -qaF -- "${setting%%=*}" "$library" ||
      fail "$library does not contain ${setting%%=*}"
  done <<<"$defaults"
  ! grep -q '^LD_LIBRARY_PATH=.*:$' job || fail "LD_LIBRARY_PATH ends in the working folder"
  grep -qx 'argument --nodes=2' job || fail "16 ranks do not take 2 nodes" "$(cat job)"
  grep -qx 'argument --time=1:00:00' job || fail "an option is lost" "$(cat job)"
done
[[ -n $library ]] || echo "skipped: no libnccl that could know the variables"

echo "for other clusters, submit.sh requests the shape in slurm/README.md, and every line to edit is marked"
shape() { # SHAPE ARGUMENTS...
  run 0 env PATH="$folder/stub:$PATH" "$source_dir/slurm/submit.sh" tiny.yaml --time=1:00:00 "${@:2}"
  [[ $(sed -n 's/^argument //p' job | paste -sd' ') == *"$1"* ]] || fail "not $1" "$(cat job)"
}
shape "--cpus-per-task=16 --nodes=4 --ntasks=16 --ntasks-per-node=4 --gpus-per-node=4" -N 4 --set run.device=cuda \
  --set cluster.ranks_per_node=4
shape "--cpus-per-task=1 --nodes=4 --ntasks=256 --ntasks-per-node=64 --gpus-per-node=0" -N 4 --set run.device=cpu \
  --set cluster.ranks_per_node=64 --set data.global_batch=256
for script in "$source_dir/slurm/train.sbatch" "$examples/sweep.sbatch"; do
  for option in nodes ntasks-per-node gpus-per-node cpus-per-task time partition account; do
    grep -qE "^##?SBATCH --$option=.*<--" "$script" || fail "$script: --$option is not marked"
  done
done

echo "every config field in the examples exists"
sections=$("$trireme" check --fields | sed -nE 's/^([a-z]+): .*/\1/p' | paste -sd'|')
grep -ohE "\\b($sections)\.[a-z_]+\\b" "$examples"/* | sort -u >fields
(($(wc -l <fields) >= 6)) || fail "no fields were found" "$(cat fields)"
while read -r field; do run 0 "$trireme" check tiny.yaml --ranks 2 --get "$field"; done <fields

echo "the workstation's script trains and resumes"
mkdir "a folder" # with a blank in its path
cp -r "$source_dir/slurm" "a folder/slurm"
run 0 env RANKS=2 "a folder/slurm/examples/workstation.sh" tiny.yaml
[[ $(grep -c '"loss"' runs/tiny/metrics.jsonl) == 3 ]] || fail "not 3 steps" "$output"
run 0 "$examples/workstation.sh" tiny.yaml --set parallel.dp=2 --set run.steps=5 # the mesh determines how many
[[ $(grep -c '"loss"' runs/tiny/metrics.jsonl) == 5 ]] || fail "not 2 more steps" "$output"
has "step 5/5"
if ! command -v nvidia-smi >/dev/null; then
  run 2 "$examples/workstation.sh" tiny.yaml
  has "set RANKS to the number of ranks"
fi
finish
