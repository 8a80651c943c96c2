#!/usr/bin/env bash
# Runs that stop and continue: equal bits on the same layout, rounding on another; signals; failing storage.
#   resume_is_bit_identical.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 12, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, tokenizer: bytes}
lr: {peak: 1e-2, decay_steps: 12}
YAML
make_text
bottles | sed s/green/brown/ >other.txt
run 0 "$trireme" data prepare --format text --tokenizer bytes --output other other.txt
make_chat

# stopped_after RUN STEP COPY RANKS SETTINGS...: copies a run as it was after this step, which has a checkpoint. Its
# metrics have the later steps, which the next start reports as lost. With TRIREME_ALL_CASES trains the copy instead.
stopped_after() {
  if [[ -n ${TRIREME_ALL_CASES:-} ]]; then
    rm -rf "$3"
    train 0 "$3" "$4" "${@:5}" run.steps="$2"
    return
  fi
  local checkpoint
  rm -rf "$3" && cp -r "$1" "$3"
  for checkpoint in "$3"/checkpoints/step_*; do
    ((10#${checkpoint##*_} <= $2)) || rm -r "$checkpoint"
  done
  printf 'step_%08d\n' "$2" >"$3/checkpoints/latest"
}

echo "N steps, a stop and N more steps give the same bits as 2 N steps; so does a restart from a checkpoint amid them"
mesh=(parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=1)
experts="model.experts=8 model.expert_hidden=32 model.shared_experts=1 model.dense_layers=1 model.bias=false \
model.router=sigmoid model.router_bias_rate=0.01 model.aux_loss=0.01 parallel.ep_capacity=8"
for kind in "parallel.zero=2 precision.compute=bf16 optimizer.ema=0.9" \
  "parallel.zero=1 parallel.ep=4 optimizer.moments=bf16 $experts" \
  "parallel.zero=0 model.tie_embeddings=false optimizer.moments=bf16 optimizer.ema=0.9" \
  "parallel.zero=2 optimizer.name=muon optimizer.adamw_lr=3e-3" \
  "parallel.zero=2 parallel.schedule=zb_h1 parallel.layers_per_chunk=1,3" \
  "parallel.zero=1 parallel.schedule=zb_v parallel.chunks=2" \
  "parallel.zero=1 optimizer.name=lamb parallel.chunks=2 parallel.schedule=interleaved data.micro_batch=1 \
data.batch_ramp=0:4,512:8 run.tokens=2560 lr.by=tokens lr.decay_steps=0 lr.warmup_tokens=600 data.packing=best_fit \
data.sources=[] data.stages=[{\"until_tokens\":1000,\"sources\":[text]},{\"sources\":[other,chat]}]"; do
  read -ra settings <<<"$kind"
  rm -rf whole parts
  train 0 whole 8 "${mesh[@]}" "${settings[@]}" checkpoint.every=5
  if [[ $kind == *run.tokens* ]]; then # four steps of 4 samples, one of 8
    train 0 parts 8 "${mesh[@]}" "${settings[@]}" run.steps=5 run.tokens=768
  elif [[ $kind == *precision* ]]; then
    train 0 parts 8 "${mesh[@]}" "${settings[@]}" run.steps=5
  else
    stopped_after whole 5 parts 8 "${mesh[@]}" "${settings[@]}"
  fi
  train 0 parts 8 "${mesh[@]}" "${settings[@]}" checkpoint.every=3
  has "resumed from parts/checkpoints/step_00000005"
  cmp -s <(curve whole) <(curve parts) || fail "$kind: the curves differ" "$(diff <(curve whole) <(curve parts))"
  [[ $(curve parts | wc -l) -eq 12 ]] || fail "$kind: metrics.jsonl does not have every step once"
  run 0 "$trireme" checkpoint diff whole parts
  [[ $kind != *ema* ]] || { run 0 "$trireme" checkpoint inspect parts && has "ema/layers/3/"; }
done

echo "steps skipped as spikes are the same after a resume, on any layout"
rm -rf whole parts
# With such a learning rate losses and norms vary around their means.
spikes=(run.steps=90 lr.decay_steps=90 lr.peak=1e-6 optimizer.skip_spikes=0.5)
train 0 whole 2 parallel.tp=2 "${spikes[@]}"
has "of these steps were skipped because of spikes"
train 0 parts 2 parallel.tp=2 "${spikes[@]}" run.steps=70
train 0 parts 2 parallel.tp=2 "${spikes[@]}"
skipped() { sed -n 's/.*"step":\([0-9]*\),"spike":.*/\1/p' "$1/metrics.jsonl"; }
cmp -s <(curve whole) <(curve parts) || fail "the curves differ" "$(diff <(curve whole) <(curve parts))"
[[ $(skipped parts) == "$(skipped whole)" && $(skipped whole | head -1) -gt 64 && $(skipped whole | tail -1) -gt 70 ]] ||
  fail "other steps were skipped" "$(skipped whole)"$'\n'"$(skipped parts)"
train 0 single 1 "${spikes[@]}"
[[ $(skipped single) == "$(skipped whole)" ]] || fail "one rank skips other steps" "$(skipped single)"

# averages_differ_by A B: prints the largest difference of an element of the averages of the weights; nothing if equal.
averages_differ_by() {
  "$trireme" checkpoint diff "$1" "$2" --only ema/ --json | grep -o '"max_abs":[^,]*' | cut -d: -f2 | sort -g | tail -1
}
echo "another layout continues with the exact next sample, and its curve and its average are equal up to rounding"
rm -rf whole parts
ramp=data.batch_ramp=0:4,512:8 # the first four steps have 4 samples
kept=(checkpoint.every=3 checkpoint.keep_last=4)
train 0 whole 8 "${mesh[@]}" optimizer.ema=0.9 "$ramp" "${kept[@]}"
stopped_after whole 3 start 8 "${mesh[@]}" optimizer.ema=0.9 "$ramp"
for layout in "1 tp=1 pp=1 dp=1 zero=0" "4 tp=1 pp=1 dp=4 zero=2" "4 tp=1 pp=4 dp=1 zero=1" \
  "4 tp=4 pp=1 dp=1 zero=1" "2 tp=1 pp=1 dp=2 zero=0" "4 tp=1 pp=1 dp=2 zero=2 cp=2" "8 tp=2 pp=1 dp=1 zero=1 cp=4" \
  "4 tp=1 pp=2 dp=2 zero=2 schedule=auto" "4 tp=2 pp=2 dp=1 zero=1 schedule=zb_h1" \
  "4 tp=1 pp=2 dp=2 zero=2 chunks=2 schedule=zb_v" \
  "3 tp=1 pp=3 dp=1 zero=1 layers_per_chunk=auto" "2 tp=1 pp=2 dp=1 zero=0 layers_per_chunk=3,1"; do
  read -r ranks tp pp dp zero more last <<<"$layout"
  rm -rf other && cp -r start other
  train 0 other "$ranks" "parallel.$tp" "parallel.$pp" "parallel.$dp" "parallel.$zero" "parallel.${more:-cp=1}" \
    "parallel.${last:-ep=1}" optimizer.ema=0.9 "$ramp"
  paste -d' ' <(curve whole) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole) <(curve other))"
  run 0 "$trireme" checkpoint inspect other
  has "ema/layers/3/"
  awk -v d="$(averages_differ_by whole other)" 'BEGIN {exit !(d + 0 <= 1e-4)}' ||
    fail "$layout: the averages differ by $(averages_differ_by whole other)"
done

echo "parts of sequences: a resume has equal bits, and whole sequences continue it"
parts=(parallel.tp=1 parallel.cp=2 parallel.pp=2 parallel.dp=2 parallel.zero=2 optimizer.ema=0.9 "$ramp")
rm -rf whole_cp start_cp single
train 0 whole_cp 8 "${parts[@]}" "${kept[@]}"
stopped_after whole_cp 3 start_cp 8 "${parts[@]}"
cp -r start_cp single
train 0 start_cp 8 "${parts[@]}"
run 0 "$trireme" checkpoint diff whole_cp start_cp
train 0 single 1 optimizer.ema=0.9 "$ramp"
for continued in whole_cp single; do
  paste -d' ' <(curve whole) <(curve "$continued") | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$continued: the curve differs" "$(paste -d' ' <(curve whole) <(curve "$continued"))"
done

echo "with loss masks the loss is the mean over the targets of all ranks on any layout, also after a resume"
rm -rf whole_masked start_masked
masked=('data.sources=[chat]' data.validation_fraction=0.1 run.eval_every=6 run.eval_batches=2 "$ramp")
train 0 whole_masked 8 "${mesh[@]}" "${masked[@]}" "${kept[@]}"
stopped_after whole_masked 3 start_masked 8 "${mesh[@]}" "${masked[@]}"
# Prints the lines of a run's metrics since its last restart.
since_restart() { tac "$1/metrics.jsonl" | sed '/^{"restart"/q' | tac; }
validation() { since_restart "$1" | sed -n 's/.*"step":\([0-9]*\).*"validation_loss":\([^,}]*\).*/\1 \2/p' | tail -2; }
for layout in "1 tp=1 pp=1 dp=1 zero=0" "8 tp=1 pp=2 dp=4 zero=2" "2 tp=2 pp=1 dp=1 zero=1"; do
  read -r ranks tp pp dp zero <<<"$layout"
  rm -rf other && cp -r start_masked other
  train 0 other "$ranks" "parallel.$tp" "parallel.$pp" "parallel.$dp" "parallel.$zero" "${masked[@]}"
  paste -d' ' <(curve whole_masked) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole_masked) <(curve other))"
  paste -d' ' <(validation whole_masked) <(validation other) | awk '{d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 2}' || fail "$layout: validation differs" "$(validation whole_masked) $(validation other)"
done
mv chat.mask chat.mask.off
train 3 whole_masked 1 "${masked[@]}" run.steps=13
has "chat.mask: is missing, but chat.json says that the tokens have a loss mask"
rm chat.json
train 2 whole_masked 8 "${mesh[@]}" "${masked[@]}" run.steps=13
has "data.sources[0]: chat with"
mv chat.mask.off chat.mask

# Losses of the two files of data.validation in the last two evaluations: "6 lines 2.5".
named() { since_restart "$1" | sed -n 's/.*"step":\([0-9]*\),"validation":{\([^}]*\)}.*/\1,\2/p' |
  awk -F, '{for (i = 2; i <= NF; ++i) {split($i, of, ":"); print $1, of[1], of[2]}}' | tr -d '"' | tail -4; }
echo "documents, packing, stages and a ramp: a resume has equal bits, and another layout continues it up to rounding"
bottles | cut -c 1-23 >lines.txt
run 0 "$trireme" data prepare --format lines --tokenizer bytes --output lines lines.txt
documents=(data.document_mask=true data.eod_loss=false data.packing=best_fit "$ramp" 'data.sources=[]'
  'data.stages=[{"until_tokens":700,"sources":["lines"]},{"sources":["lines","chat"]}]'
  'data.validation=[{"name":"lines","path":"lines"},{"name":"talk","path":"chat"}]' run.eval_every=6 run.eval_batches=2)
rm -rf whole_documents start_documents parts_documents
train 0 whole_documents 8 "${mesh[@]}" "${documents[@]}" "${kept[@]}"
stopped_after whole_documents 3 start_documents 8 "${mesh[@]}" "${documents[@]}"
cp -r start_documents parts_documents
train 0 parts_documents 8 "${mesh[@]}" "${documents[@]}"
run 0 "$trireme" checkpoint diff whole_documents parts_documents
cmp -s <(curve whole_documents) <(curve parts_documents) ||
  fail "the curves differ" "$(diff <(curve whole_documents) <(curve parts_documents))"
[[ $(named whole_documents | cut -d' ' -f1,2) == $'6 lines\n6 talk\n12 lines\n12 talk' ]] ||
  fail "not every file of data.validation has its losses" "$(named whole_documents)"
cmp -s <(named whole_documents) <(named parts_documents) ||
  fail "losses by name differ" "$(diff <(named whole_documents) <(named parts_documents))"
for layout in "1 tp=1 pp=1 dp=1 cp=1" "4 tp=1 pp=1 dp=2 cp=2" "4 tp=1 pp=4 dp=1 cp=1"; do
  read -r ranks tp pp dp cp <<<"$layout"
  rm -rf other && cp -r start_documents other
  train 0 other "$ranks" "parallel.$tp" "parallel.$pp" "parallel.$dp" "parallel.$cp" "${documents[@]}"
  paste -d' ' <(curve whole_documents) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole_documents) <(curve other))"
  paste -d' ' <(validation whole_documents) <(validation other) | awk '{d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 2}' || fail "$layout: validation differs" "$(validation whole_documents) $(validation other)"
  paste -d' ' <(named whole_documents) <(named other) | awk '{d = $3 - $6; if (d < 0) d = -d; if ($2 != $5 || d > 2e-5 * $3) bad = 1}
    END {exit bad || NR != 4}' || fail "$layout: losses by name differ" "$(named whole_documents) $(named other)"
done
rm -rf plain
train 0 plain 1 "${documents[@]}" data.document_mask=false
cmp -s <(curve plain) <(curve other) && fail "the mask changes nothing"

echo "muon continues on another layout, and another optimizer does not continue its run"
muon=(optimizer.name=muon lr.peak=1e-3)
rm -rf whole_muon start_muon
train 0 whole_muon 8 "${mesh[@]}" "${muon[@]}" "${kept[@]}"
stopped_after whole_muon 6 start_muon 8 "${mesh[@]}" "${muon[@]}"
for layout in "1 tp=1 pp=1 dp=1 zero=0" "4 tp=4 pp=1 dp=1 zero=1" "4 tp=1 pp=1 dp=4 zero=2"; do
  read -r ranks tp pp dp zero <<<"$layout"
  rm -rf other && cp -r start_muon other
  train 0 other "$ranks" "parallel.$tp" "parallel.$pp" "parallel.$dp" "parallel.$zero" "${muon[@]}"
  paste -d' ' <(curve whole_muon) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole_muon) <(curve other))"
done
run 0 "$trireme" checkpoint inspect other
has "optimizer/layers/3/attention/qkv/weight/momentum"
rm -rf other && cp -r start_muon other
train 2 other 1
has "has the optimizer state of optimizer.name muon, but adamw needs another one"

echo "experts continue on another number of ranks that divide them"
read -ra moe <<<"$experts"
rm -rf whole_moe start_moe
train 0 whole_moe 4 parallel.tp=2 parallel.dp=2 parallel.ep=4 "${moe[@]}" "${kept[@]}"
stopped_after whole_moe 6 start_moe 4 parallel.tp=2 parallel.dp=2 parallel.ep=4 "${moe[@]}"
for layout in "1 tp=1 ep=1 zero=0" "4 tp=1 ep=2 zero=1" "2 tp=2 ep=1 zero=1"; do
  read -r ranks tp ep zero <<<"$layout"
  rm -rf other && cp -r start_moe other
  train 0 other "$ranks" "parallel.$tp" "parallel.$ep" "parallel.$zero" "${moe[@]}"
  paste -d' ' <(curve whole_moe) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole_moe) <(curve other))"
done
run 0 "$trireme" eval other

echo "an average that is switched on starts from the weights, and switched off is dropped"
rm -rf other && cp -r start other
train 0 other 1 "$ramp" run.steps=7
has "optimizer.ema: 0.9, now 0: the checkpoint's EMA is dropped"
run 1 "$trireme" checkpoint diff start other --only ema/
has "only in A"
run 2 "$trireme" eval other --ema
has "step_00000007: the checkpoint has no average of the weights"
# At this rate no weight moves.
train 0 other 2 parallel.dp=2 parallel.zero=0 optimizer.ema=0.9 lr.peak=1e-30 "$ramp" run.steps=8
has "optimizer.ema: 0, now 0.9: the EMA starts from the weights"
has "step 7, the EMA starts from the weights, "
weights_and_average() {
  "$trireme" checkpoint export "$1" "$1/$2" "${@:3}" >/dev/null || echo "failed: $*"
  md5sum <"$1/$2/model.safetensors"
}
[[ $(weights_and_average other average --ema) == "$(weights_and_average other weights)" ]] ||
  fail "the average does not start from the weights"
[[ $(weights_and_average start average --ema) != "$(weights_and_average start weights)" ]] ||
  fail "the average of a trained run equals its weights"

echo "moments of the other type are converted, which the log reports"
rm -rf other && cp -r start other
train 0 other 1 optimizer.moments=bf16 "$ramp" run.steps=9
has "optimizer.moments: fp32, now bf16"
has "moments converted from f32 to bf16"
train 0 other 2 parallel.dp=2 "$ramp" run.steps=12
has "moments converted from bf16 to f32"
paste -d' ' <(curve whole) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 1e-3 * $2) bad = 1}
  END {exit bad || NR != 12}' || fail "the curve differs" "$(paste -d' ' <(curve whole) <(curve other))"

echo "a finished run reports that it is complete"
train 0 whole 8 "${mesh[@]}"
has "the run is complete"

echo "after a signal to one rank, all ranks stop after the same step and save a checkpoint, with status 75; the run then resumes"
for signal in TERM USR1 USR2 INT; do
  rm -rf long
  start long 4 run.steps=100000 parallel.tp=2 parallel.pp=2
  until_true steps_done long 3
  rank=$(pid_of 2)
  kill -"$signal" "$rank"
  # Further signals change nothing until the process has ended.
  deadline=$((SECONDS + timeout_s))
  [[ $signal == INT ]] || while ((SECONDS < deadline)) && kill -"$signal" "$rank" 2>/dev/null; do sleep 0.002; done
  end_of long 75
  lacks "effective time" # its files take long to read on slow storage, and the scheduler may end the processes
  stopped=$(curve long | tail -1 | cut -d' ' -f1)
  [[ $(cat long/checkpoints/latest) == "$(printf 'step_%08d' "$stopped")" ]] || fail "SIG$signal: no checkpoint of step $stopped"
  [[ $signal == TERM ]] || continue
  train 0 long 4 parallel.tp=2 parallel.pp=2 "run.steps=$((stopped + 2))"
  has "resumed from long/checkpoints/step_$(printf %08d "$stopped")"
  has "effective time"
done

echo "prune refuses while a run writes the checkpoints"
two_checkpoints() { [[ $(ls -d "$1"/checkpoints/step_???????? 2>/dev/null) == *$'\n'* ]]; }
rm -rf long
start long 4 run.steps=100000 checkpoint.every=2 checkpoint.keep_last=3 checkpoint.keep_every=0
until_true two_checkpoints long
run 3 "$trireme" checkpoint prune long --keep-last 1
has "long/checkpoints/checkpoint.lock: checkpoint.dir is in use by run $PWD/long, process "
run 0 "$trireme" checkpoint prune long --keep-last 1 --dry-run # removes nothing
kill -TERM "$(pid_of 0)"
end_of long 75
run 0 "$trireme" checkpoint prune long --keep-last 1
has "1 left; the 1 newest are kept"

echo "trireme checkpoint lists, shows, verifies and prunes them"
rm -rf whole
train 0 whole 4 parallel.tp=2 parallel.pp=2 checkpoint.every=2 checkpoint.keep_last=3 checkpoint.keep_every=8 run.steps=12
[[ $(ls whole/checkpoints) == "$(printf '%s\n' checkpoint.lock latest step_00000008 step_00000010 step_00000012)" ]] ||
  fail "keep_last, keep_every" "$(ls whole/checkpoints)"
[[ $(grep -c checkpoint_stall_ms whole/metrics.jsonl) -eq 6 ]] || fail "metrics.jsonl lacks checkpoints"
run 0 "$trireme" checkpoint list whole/checkpoints
[[ $(wc -l <<<"$output") -eq 3 ]] || fail "list" "$output"
run 0 "$trireme" checkpoint inspect whole/checkpoints/step_00000012
has "optimizer/layers/3/"
has "samples: 96"
run 0 "$trireme" checkpoint verify whole/checkpoints/step_00000012
has "all checksums match"
printf x | dd of=whole/checkpoints/step_00000012/shard_00001.h5 bs=1 seek=5000 conv=notrunc status=none
run 3 "$trireme" checkpoint verify whole/checkpoints/step_00000012
has "shard_00001.h5"
run 0 "$trireme" checkpoint prune whole # keeps the checkpoints that the run keeps
has "whole/checkpoints: 0 removed, 3 left; the 3 newest and multiples of step 8 are kept (whole/resolved.yaml)"
run 0 "$trireme" checkpoint prune whole/checkpoints --keep-last 1 --dry-run
has "step_00000010 would be removed"
has "1 would be removed, 2 left; the 1 newest and multiples of step 8 are kept (whole/checkpoints/step_00000012's config)"
[[ $(ls -d whole/checkpoints/step_*) == "$(printf 'whole/checkpoints/step_%08d\n' 8 10 12)" ]] || fail "prune --dry-run"
run 0 "$trireme" checkpoint prune whole/checkpoints --keep-last 1
[[ $(ls -d whole/checkpoints/step_*) == "$(printf 'whole/checkpoints/step_%08d\n' 8 12)" ]] || fail "prune" "$output"
run 0 "$trireme" checkpoint prune whole/checkpoints --keep-last 1 --keep-every 0
[[ $(ls -d whole/checkpoints/step_*) == whole/checkpoints/step_00000012 ]] || fail "prune" "$(ls whole/checkpoints)"
if command -v h5dump >/dev/null; then
  run 0 h5dump -H -d /model/layers/0/norm1/weight whole/checkpoints/step_00000012/checkpoint.h5
  has "H5T_IEEE_F32LE"
else
  echo "skipped: no h5dump"
fi

echo "a damaged checkpoint is passed over, and named"
rm -rf whole
train 0 whole 4 parallel.tp=2 parallel.pp=2 checkpoint.every=4 run.steps=8
truncate -s -1 whole/checkpoints/step_00000008/shard_00002.h5
train 0 whole 4 parallel.tp=2 parallel.pp=2
has "checkpoint skipped"
has "shard_00002.h5"
has "resumed from whole/checkpoints/step_00000004"

echo "another model: refused, with each field and both values, unless it is accepted; other changes are reported"
cp whole/resolved.yaml before
train 2 whole 4 parallel.tp=2 parallel.pp=2 model.window=16 model.norm_eps=1e-3 lr.peak=5e-3 run.steps=13
has "model.window: 0, now 16"
has "model.norm_eps: 1e-05, now 0.001"
has "checkpoint.accept_changes to model.window,model.norm_eps"
grep -q "model.window: 0, now 16" whole/log.txt || fail "log.txt does not say why the start was refused"
cmp -s before whole/resolved.yaml || fail "a refused start changed resolved.yaml"
train 2 whole 4 parallel.tp=2 parallel.pp=2 model.window=16 model.norm_eps=1e-3 checkpoint.accept_changes=model.window run.steps=13
lacks "model.window: "
has "model.norm_eps: 1e-05, now 0.001"
train 0 whole 4 parallel.tp=2 parallel.pp=2 model.window=16 lr.peak=5e-3 checkpoint.accept_changes=model.window run.steps=13
for change in "model.window: 0, now 16 (accepted by checkpoint.accept_changes)" "lr.peak: 0.01, now 0.005" "run.steps: 12, now 13"; do
  has "$change"
  grep -qF "$change" whole/log.txt || fail "log.txt lacks '$change'"
done
train 0 whole 4 parallel.tp=2 parallel.pp=2 model.window=16 lr.peak=5e-3 run.steps=14 # once saved, no longer a change
has "run.steps: 13, now 14"
lacks "lr.peak"
train 3 whole 4 parallel.tp=2 parallel.pp=2 model.hidden=64 checkpoint.accept_changes=true run.steps=20 # not possible
has "model/"
train 2 whole 4 parallel.tp=2 parallel.pp=2 model.hidden=64 run.steps=20
has "model.hidden: 32, now 64"
lacks "accept_changes"
train 0 whole 4 parallel.tp=2 parallel.pp=2 model.window=16 lr.peak=5e-3 lr.decay_steps=30 run.steps=15
has "warning: the learning rate jumps"

echo "data in another order are refused with the changed fields and the first sample, unless checkpoint.accept_changes accepts them"
rm -rf whole
train 0 whole 4 parallel.tp=2 parallel.pp=2 run.steps=4
cp text.bin kept.bin && cp other.bin text.bin # equal in length: prepared from other text
train 2 whole 4 parallel.tp=2 parallel.pp=2 data.global_batch=12
has "does not divide the 32 samples that the run has consumed; set it to 8 or 16"
train 2 whole 4 parallel.tp=2 parallel.pp=2
has "whole/checkpoints/step_00000004: 32 samples were consumed; their order differs from sample 32 on"
has "data.sources[0]: text with"
has "checkpoint.accept_changes to data.sources"
cp kept.bin text.bin
train 2 whole 4 parallel.tp=2 parallel.pp=2 data.seed=7 data.validation_fraction=0.2
has "data.seed: 1234, now 7"
has "data.validation_fraction: 0.01, now 0.2"
has "checkpoint.accept_changes to data.seed,data.validation_fraction"
train 2 whole 4 parallel.tp=2 parallel.pp=2 data.seed=7 data.validation_fraction=0.2 checkpoint.accept_changes=data.seed
[[ $(curve whole | wc -l) -eq 4 ]] || fail "a run that was refused changed metrics.jsonl"
# Weights in the same proportion, another place, another batch give the same order.
for kind in text.bin text.idx text.json; do cp "$kind" "moved.${kind#text.}"; done
train 0 whole 4 parallel.tp=2 parallel.pp=2 'data.sources=[{path: moved, weight: 3}]' data.global_batch=16 run.steps=6
lacks "order differs"
has "for 2 steps"
train 0 whole 4 parallel.tp=2 parallel.pp=2 'data.sources=[text, other]' checkpoint.accept_changes=data.sources run.steps=8
has "their order differs from sample"
has "data.sources: 1 listed, now 2"
train 0 whole 4 parallel.tp=2 parallel.pp=2 'data.sources=[text, other]' run.steps=9
lacks "order differs"

finish
