#!/usr/bin/env bash
# Runs the README's commands in order, from the text to a supervised run, with less text, a smaller vocabulary and fewer
# steps: `sed` changes the README's own lines. Then runs some commands of other documents. sbatch is simulated.
#   readme_runs.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

mkdir -p build/bin bin
ln -s "$trireme" build/bin/trireme
ln -s "$source_dir/slurm" "$source_dir/configs" .
# A system package provides the text.
# shellcheck disable=SC2016 # the scripts' own
printf '#!/bin/sh\nfor i in $(seq 300); do echo "$i: In the beginning of $1 was the word, and the word was $i"; done\n' \
  >bin/bible
chmod +x bin/bible
PATH=$PWD/bin:$PATH
mkdir -p crawl books
echo "A book of words, and of the beginning." >books/one.txt
for i in $(seq 400); do echo "{\"content\": {\"text\": \"page $i\"}}"; done >crawl/a.jsonl
gzip crawl/a.jsonl

less='s/--vocab 2000/--vocab 300/; s/vocab: 2000/vocab: 300/; s/run.steps=300/run.steps=6/; s/--tokens 100/--tokens 5/
  s/layers: 8, hidden: 128/layers: 4, hidden: 32/; s/steps: 200, eval_every: 100/steps: 4, eval_every: 2/
   s/every: 100/every: 2/; s/warmup_steps: 20/warmup_steps: 1/
  s/step_00000200/step_00000004/'
# block SECTION KIND [DOCUMENT]: prints the code blocks of that kind in the section ("": before the first section);
# continued lines are joined.
block() {
  awk -v section="## $1" -v kind="$2" 'BEGIN{here = section == "## "} /^## /{here = $0 == section}
    $0 == "```" kind {inside = here; next} /^```/{inside = 0} inside' "$source_dir/${3:-README.md}" |
    sed -e :a -e '/\\$/{N;s/ *\\\n */ /;ba}' | sed "$less"
}
# Excludes a screen, and commands that need a running job or recorded steps.
others='--watch|--record|timeline runs/mine'

block "A run by example" yaml >my.yaml
[[ -s my.yaml ]] || fail "the README has no config"
num=0
for section in "A run by example" "Stopping and resuming" "Watching a run" "Using a model"; do
  echo "$section"
  while read -r line; do
    run 0 bash -c "$line" </dev/null
    num=$((num + 1))
    [[ $line != *"trireme train my.yaml --set run.steps=6"* ]] || has "resumed from runs/mine/checkpoints/step_00000004"
    [[ $line != *"checkpoint list"* ]] || has "step_00000006"
  done < <(block "$section" bash | grep -vE -- "$others" | grep .)
done
((num >= 18)) || fail "only $num commands were found"

echo "Slurm, and slurm/README.md"
# A cluster that only records; the quick start's data.
printf '#!/bin/sh\nprintf "%%s " "$@" >>jobs\necho >>jobs\necho $$\n' >bin/sbatch
printf '#!/bin/sh\necho "gpu* 64"\n' >bin/sinfo
chmod +x bin/sbatch bin/sinfo
run 0 "$trireme" data prepare --format text --tokenizer bytes --output runs/quickstart-data/kjv data/old.txt
while read -r line; do run 0 bash -c "$line" </dev/null; done < <(block Slurm bash | grep . && block "" bash slurm/README.md)
[[ $(grep -oE -- '(--nodes=[0-9]+|sbatch) .*yaml' jobs | sed -E 's/ .* / /' | paste -sd,) == \
  "--nodes=2 large.yaml,sbatch my.yaml,--nodes=3 large.yaml,--nodes=1 configs/quickstart.yaml,--nodes=1 my.yaml" ]] ||
  fail "these jobs were not submitted" "$(cat jobs)"
[[ $(grep -c '"loss"' runs/healed/metrics.jsonl) == 4 ]] || fail "not 4 steps under supervise"
# The config that the batch script names fits its number of ranks.
header() { sed -nE "s/^#SBATCH --$1=([0-9]+).*/\1/p" "$source_dir/slurm/train.sbatch"; }
run 0 "$trireme" check "$(sed -nE 's/^config=([^ ]+).*/\1/p' slurm/train.sbatch)" \
  --ranks $(($(header nodes) * $(header ntasks-per-node)))

echo "commands of other documents"
run 0 "$trireme" data inspect data/new --tokenizer data/bpe.model
run 0 bash -c "$(block "" bash io/tokens/README.md | sed 's/--tokenizer qwen/--tokenizer out/; q')"
has "data/web_val: "
run 0 "$trireme" checkpoint inspect runs/mine
has "step 6"
run 1 "$trireme" checkpoint diff runs/mine/checkpoints/step_00000002 runs/mine # they differ
run 0 "$mpirun" -n 4 "$trireme" eval runs/mine --data data/old --set parallel.tp=4 --json

echo "mistakes in a config are reported as the README shows"
answer=$(block "A run by example" console)
run 2 bash -c "$(sed -n '1s/^\$ //p' <<<"$answer")"
while read -r line; do has "$line"; done < <(sed 1d <<<"$answer")

finish
