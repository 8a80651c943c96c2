#!/usr/bin/env bash
# Commands with results accept --json: they print one object on stdout, with its schema version, the shape that
# app/JSON.md documents, and the numbers of the text. A run's folder is accepted wherever a checkpoint is.
#   answers_are_json.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"
if ! command -v python3 >/dev/null; then
  echo "skipped: no python3"
  exit 77
fi

make_text
cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 2, dir: run, sample_tokens: 0, eval_batches: 2}
model: {layers: 2, hidden: 32, heads: 2, vocab: 257, seq_len: 32, norm: rmsnorm, activation: swiglu, position: rope,
        bias: false}
data: {sources: [text], global_batch: 4, validation_fraction: 0.2}
parallel: {pp: 2}
YAML
run 0 "$trireme" checkpoint list .
has ".: no checkpoint"
run 3 "$trireme" checkpoint list nowhere
has "nowhere: no such folder"
run 0 "$mpirun" -n 2 "$trireme" train tiny.yaml
run 0 "$mpirun" -n 2 "$trireme" train tiny.yaml --set run.steps=4

# shape STATUS ROW ARGUMENTS...: checks that the printed object has the shape of this row of the documented table.
shape() {
  local status=0
  "$trireme" "${@:3}" --json >answer 2>errors || status=$?
  [[ $status -eq $1 ]] || fail "${*:3} --json: status $status, expected $1" "$(cat errors)"
  python3 - "$source_dir/app/JSON.md" "$2" answer <<'PYTHON' || fail "${*:3} --json" "$(cat answer)"
import json, re, sys

table, row, answer = sys.argv[1:]
FREE = {"numbers", "libraries", "parts_s", "flows"}  # objects whose keys are names

def shape(value, name=""):
    if isinstance(value, dict):
        if name in FREE:
            return " {NAME" + shape(next(iter(value.values()))) + "}"
        return " {" + ", ".join(key + shape(part, key) for key, part in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        assert len({tuple(part) for part in value}) == 1, value
        known = lambda key: [part[key] for part in value if part[key] is not None]
        return " [" + shape({key: (known(key) or [None])[0] for key in value[0]}).strip() + "]"
    if isinstance(value, list):
        shapes = sorted({shape(part).strip() for part in value})
        assert len(shapes) < 2, shapes
        return " [" + "".join(shapes) + "]"
    return ""

found = re.search(r"^\| `%s` \| `(.*)` \|" % re.escape(row), open(table).read(), re.M)
assert found, "app/JSON.md has no row " + row
text = open(answer).read()
assert text.count("\n") == 1 or row == "--version", "more than one line"
answer = json.loads(text)
for each in answer if isinstance(answer, list) else [answer]:
    assert next(iter(each)) == "schema" and each.pop("schema") == 1, "no schema version first"
found, documented = shape(answer).strip(), found.group(1)
assert found == documented, "\n%s\nis documented as\n%s" % (found, documented)
PYTHON
}
# fields ROW ARGUMENTS...: checks that the object has the fields of this row, whose lists may be empty.
fields() {
  "$trireme" "${@:2}" --json >answer 2>errors || fail "${*:2} --json: status $?" "$(cat errors)"
  python3 - "$source_dir/app/JSON.md" "$1" answer <<'PYTHON' || fail "${*:2} --json" "$(cat answer)"
import json, re, sys

table, row, answer = sys.argv[1:]
found = re.search(r"^\| `%s` \| `(.*)` \|" % re.escape(row), open(table).read(), re.M)
assert found, "app/JSON.md has no row " + row
documented = found.group(1)[1:-1]
while re.search(r" ?[\[{][^\[\]{}]*[\]}]", documented):  # the parts of a field are not checked
    documented = re.sub(r" ?[\[{][^\[\]{}]*[\]}]", "", documented)
answer = json.load(open(answer))
assert list(answer) == ["schema"] + documented.split(", ") and answer["schema"] == 1, (list(answer), documented)
PYTHON
}
# value EXPRESSION: prints the value of EXPRESSION for the answer `a`.
value() { python3 -c "import json; a = json.load(open('answer')); print($1)"; }
equal() { [[ $1 == "$2" ]] || fail "$1, expected $2" "$(cat answer)"; }

echo "every answer has its documented shape"
shape 0 --version --version
shape 0 check check tiny.yaml --ranks 2
equal "$(value 'a["parameters"], a["ranks"], a["layout"]["pp"], a["data"]["vocab"]')" \
  "$("$trireme" check tiny.yaml --ranks 2 --verbose | sed -n 's/^tiny: .*(\([0-9]*\)).*/\1 2 2 257/p')"
equal "$(value 'a["memory"][1]["bytes"] == sum(p["bytes"] for p in a["memory"][1]["parts"])')" True
shape 0 'data order' data order tiny.yaml
shape 0 'data inspect' data inspect text --tokenizer bytes --samples 2 --length 5
equal "$(value 'a["documents"], len(a["samples"]), len(a["samples"][0]["ids"]), a["samples"][0]["text"]')" "1 1 5 1 gre"
shape 0 'data prepare' data prepare --format text --tokenizer bytes --output text --force text.txt
equal "$(value 'a["outputs"][0]["prefix"], a["outputs"][0]["documents"], a["vocab"], a["resumed"]')" "text 1 257 0"
shape 0 'data verify' data verify text --vocab 257
shape 0 'data verify' data verify text # reads text.json
equal "$(value 'a["vocab"]')" 257
equal "$(value 'a["tokens"]')" "$(($(stat -c %s text.bin) / 2))"
shape 0 'checkpoint list' checkpoint list run
equal "$(value '[(c["step"], c["valid"], c["files"]) for c in a["checkpoints"]]')" "[(4, True, 3), (2, True, 3)]"
shape 0 'checkpoint inspect' checkpoint inspect run
equal "$(value 'a["step"], a["checkpoint"], sum(t["name"].startswith("model/") for t in a["tensors"]) > 10')" \
  "4 run/checkpoints/step_00000004 True"
shape 1 'checkpoint diff' checkpoint diff run/checkpoints/step_00000002 run
equal "$(value 'a["equal"], len(a["different"]) > 10, a["config"][0]')" \
  "False True {'field': 'run.steps', 'a': '2', 'b': '4'}"
shape 0 eval eval run
echo '{"text": "7 green bottles"}' >one.jsonl
shape 0 "eval --texts" eval run --texts one.jsonl
echo '{"prompt": "7 green"}' >prompt.jsonl
shape 0 generate generate run --prompts prompt.jsonl --tokens 5 --temperature 0 --ignore-end
shape 0 generate generate run --prompt "7 green" --tokens 5 --temperature 0 --ignore-end
equal "$(value 'len(a["prompt_ids"]), len(a["ids"]), a["finish"], a["text"][:7]')" "7 5 length 7 green"
run 0 "$trireme" generate run --prompt "7 green" --tokens 5 --temperature 0 --ignore-end
[[ $output == *"$(value 'a["text"]')"* ]] || fail "text and JSON differ" "$output"
shape 1 'config diff' config diff run tiny.yaml
equal "$(value 'a["equal"], [f["field"] for f in a["fields"]]')" "False ['run.steps']"
run 0 "$trireme" config diff tiny.yaml tiny.yaml --json
printf '%s\n' "$output" >answer
equal "$(value 'a["equal"], a["fields"]')" "True []"

shape 0 'checkpoint export' checkpoint export run out
equal "$(value 'a["architecture"], a["dtype"], a["tensors"] > 10, a["files"]')" "LlamaForCausalLM fp32 True 1"
shape 0 'checkpoint import' checkpoint import out back
equal "$(value 'a["checkpoint"], a["config"]')" "back/checkpoints/step_00000000 back/config.yaml"
shape 0 'checkpoint prune' checkpoint prune back
equal "$(value 'a["folder"], a["removed"], a["left"], a["keep_last"]')" "back/checkpoints [] 1 3"

echo "answers with predictions"
llama=$source_dir/configs/llama_70b.yaml h100=$source_dir/configs/clusters/h100_nemo.yaml
predict=(simulate "$llama" --ranks 512 --cluster "$h100")
shape 0 simulate "${predict[@]}"
equal "$(value 'a["ranks"], a["fits"], abs(sum(a["parts_s"].values()) / a["step_s"] - 1) < 1e-6')" "512 True True"
shape 0 'simulate --scaling`, `--startup' "${predict[@]}" --scaling weak --to 1024
equal "$(value '[row["ranks"] for row in a]')" "[512, 1024]"
shape 0 'simulate --scaling`, `--startup' "${predict[@]}" --startup --to 512
shape 0 'simulate --schedules' "${predict[@]}" --schedules
equal "$(value 'a[0]["schedule"], any(row["schedule"] == "zb_v" for row in a)')" "1f1b True"
shape 0 'simulate --network' "${predict[@]}" --network
(cat "$source_dir/configs/published/never_fitted.csv"; echo NeMo,without_sizes) >rows.csv
shape 0 'simulate --rows' simulate --rows rows.csv --cluster "$h100" --as nemo
equal "$(value 'len(a["rows"]), len(a["skipped"])')" "176 1"
shape 0 plan plan "$llama" --ranks 512 --cluster "$h100" --keep 2
run 0 "$trireme" plan "$llama" --ranks 512 --cluster "$h100" --keep 2
has "$(value 'a["reason"]')"
equal "$(value 'len(a["layouts"]), [part in a["layouts"][0]["parts_s"] for part in a["layouts"][0]["limited_by"]]')" \
  "2 [True, True]"

echo "answers about a run and its machine"
fields status status run
fields 'report --time' report run --time
fields doctor doctor --device cpu
fields 'bench step' bench step tiny.yaml --set parallel.pp=1
fields 'bench kernels' bench kernels tiny.yaml --set parallel.pp=1
equal "$(value 'list(a["kernels"][0])[0]')" kernel

echo "verify reports what is damaged"
shape 0 'checkpoint verify' checkpoint verify run
equal "$(value 'a["ok"], a["files"]')" "True 3"
shard=$(find run/checkpoints/step_00000004 -name '*.h5' ! -name checkpoint.h5 | sort | head -1)
printf '\xff\xff\xff\xff' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
"$trireme" checkpoint verify run --json >answer 2>errors
equal "$? $(value 'a["ok"], len(a["problems"]) > 0')" "3 False True"
kib=$(($(stat -c %s "$shard") / 1024)) # half of it is weights as well
head -c $((kib / 2 * 1024)) /dev/zero | tr '\0' '\377' |
  dd of="$shard" bs=1024 seek=$((kib / 4)) conv=notrunc status=none iflag=fullblock
run 3 "$trireme" checkpoint export run/checkpoints/step_00000004 deep/damaged --max-shard-size 0.00002
[[ ! -e deep ]] || fail "an export that failed left folders" "$(find deep)"
mkdir kept && touch kept/notes
run 3 "$trireme" checkpoint export run/checkpoints/step_00000004 kept --max-shard-size 0.00002
[[ $(ls kept) == notes ]] || fail "an export that failed left files" "$(ls kept)"
rm "$shard"
run 0 "$trireme" checkpoint list run --json
printf '%s\n' "$output" >answer
equal "$(value '[c["valid"] for c in a["checkpoints"]], len(a["checkpoints"][0]["why"]) > 0')" "[False, True] True"

echo "supervise reports what it needs outside Slurm"
run 2 env -u SLURM_JOB_NODELIST "$trireme" supervise tiny.yaml
has "so this is not a Slurm job; submit slurm/train.sbatch or, on one machine, run trireme supervise tiny.yaml --launcher"
finish
