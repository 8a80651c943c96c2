#!/usr/bin/env bash
# The README's commands, as they stand there and in their order, from the text to a model in another program's folder:
# with less text, a smaller vocabulary and fewer steps, by seds of the README's own lines.
#   readme_runs.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

mkdir -p build/bin bin
ln -s "$trireme" build/bin/trireme
ln -s "$source_dir/slurm" "$source_dir/configs" .
# The text is a system package's.
# shellcheck disable=SC2016 # the scripts' own
printf '#!/bin/sh\nfor i in $(seq 300); do echo "$i: In the beginning of $1 was the word, and the word was $i"; done\n' \
  >bin/bible
chmod +x bin/bible
PATH=$PWD/bin:$PATH
# What the README takes from elsewhere.
mkdir -p crawl books some/hf
echo "A book of words, and of the beginning." >books/one.txt
for i in $(seq 400); do echo "{\"content\": {\"text\": \"page $i\"}}"; done >crawl/a.jsonl
gzip crawl/a.jsonl

less='s/--vocab 2000/--vocab 300/; s/vocab: 2000/vocab: 300/; s/run.steps=300/run.steps=6/; s/--tokens 100/--tokens 5/
  s/layers: 8, hidden: 128/layers: 4, hidden: 32/; s/steps: 200, eval_every: 100/steps: 4, eval_every: 2/
   s/every: 100/every: 2/; s/warmup_steps: 20/warmup_steps: 1/
  s|^mpirun |slurm/mpirun |; s/step_00000200/step_00000004/; s/step_00000100/step_00000002/; s/jsonl.zst/jsonl.gz/'
# block SECTION KIND: the code blocks of that kind there; lines that go on are joined.
block() {
  awk -v section="## $1" -v kind="$2" '/^## /{here = $0 == section} $0 == "```" kind {inside = here; next}
    /^```/{inside = 0} inside' "$source_dir/README.md" | sed -e :a -e '/\\$/{N;s/ *\\\n */ /;ba}' | sed "$less"
}
# Another program's; a screen; a run that goes on; a port; a hang, or recorded steps, that are not there; 16 ranks.
others='^tensorboard|^lm_eval|--watch|--record|prometheus|--hang|timeline runs/mine|-n 16 '

block "A run, by example" yaml >my.yaml
[[ -s my.yaml ]] || fail "the README has no config"
num=0
for section in "A run, by example" "Stopping and going on" "Looking in, and hangs" "Are the machines in order?" \
  "Using the model"; do
  echo "$section"
  while read -r line; do
    # The folder that goes out comes in again.
    [[ $line != *"checkpoint import"* ]] || cp -r out some/hf/folder
    expected=0
    [[ $line != *"checkpoint diff"* ]] || expected=1 # they differ
    run "$expected" bash -c "$line" </dev/null
    num=$((num + 1))
    [[ $line != *"trireme train my.yaml --set run.steps=6"* ]] || has "resumed from runs/mine/checkpoints/step_00000004"
    [[ $line != *"checkpoint inspect"* ]] || has "step 6"
    [[ $line != *"data prepare"*"--split"* ]] || has "data/web_val: "
  done < <(block "$section" bash | grep -vE "$others" | grep .)
done
((num >= 25)) || fail "only $num commands were found"

echo "what the README says of mistakes"
# The answer that stands below the command, which is told by its first word.
answer=$(block "A run, by example" console)
run 2 bash -c "$(sed -n '1s/^\$ //p' <<<"$answer")"
while read -r line; do has "$line"; done < <(sed 1d <<<"$answer")

finish
