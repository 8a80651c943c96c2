#!/usr/bin/env bash
# Tests `trireme config`: `check` accepts a new config with its data, editors find its schema, and two configs can be
# compared.
#   config_command.sh SOURCE_FOLDER PATH_OF_trireme
set -uo pipefail
source_dir=$1 trireme=$2 failures=0 output=''
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# says STATUS TEXT ARGUMENTS...: checks the executable's status and a part of its output.
says() {
  local status=0
  output=$("$trireme" "${@:3}" 2>&1) || status=$?
  [[ $status -eq $1 ]] || fail "trireme ${*:3}: status $status, expected $1: $output"
  [[ $output == *"$2"* ]] || fail "trireme ${*:3}: no '$2' in '$output'"
}
for i in $(seq 2000); do echo "$i green bottles hanging on the wall"; done >text.txt
says 0 'text: ' data prepare --tokenizer bytes --output text text.txt

echo "a new config passes check"
says 0 'next: trireme check a.yaml' config new --model quickstart --gpus 8 --data text --name a --output a.yaml
says 0 'topology: 8 ranks = tp 2 x dp 2 x pp 2' check a.yaml
[[ $(head -1 a.yaml) == "# yaml-language-server: \$schema=trireme.schema.json" ]] || fail "the first line does not name the schema"
cmp -s trireme.schema.json "$source_dir/configs/trireme.schema.json" || fail "the schema next to the config differs"
says 2 'a.yaml: already exists' config new --model quickstart --gpus 8 --output a.yaml
says 0 'wrote a.yaml' config new --model quickstart --gpus 4 --data text --output a.yaml --force
says 0 'topology: 4 ranks' check a.yaml
"$trireme" config new --model llama_8b --gpus 16 --data text >b.yaml || fail "config new to stdout"
says 0 'topology: 16 ranks' check b.yaml
[[ $("$trireme" check b.yaml --get data.tokenizer --get model.vocab) == $'bytes\n257' ]] || fail "the config does not have the vocabulary of the data"
says 0 'WARNING: model.vocab: 128256, of which 127999 are unused: data.tokenizer bytes has 257 tokens' \
  check b.yaml --set model.vocab=128256
says 0 '"model.vocab: 128256, of which 127999 are unused' check b.yaml --set model.vocab=128256 --json
says 0 '300 pieces' data train-tokenizer --vocab 300 --output bpe.model text.txt
says 0 'else/where/text: ' data prepare --tokenizer bpe.model --output else/where/text text.txt
says 0 'wrote d.yaml' config new --model quickstart --gpus 8 --data else/where/text --output d.yaml
says 0 '  else/where/text ' check d.yaml
[[ $("$trireme" check d.yaml --get data.tokenizer --get model.vocab) == $'bpe.model\n300' ]] || fail "the config does not have the tokenizer of the data"
says 2 '--data text and --data else/where/text: prepared with different tokenizers, bytes (bytes) and bpe.model (' \
  config new --model quickstart --gpus 8 --data text --data else/where/text
says 0 'wrote e.yaml' config new --model quickstart --gpus 8 --data text --data text --output e.yaml
says 3 "if the data are not on this machine, use --set 'data.sources=[nowhere]' instead" \
  config new --model quickstart --gpus 8 --data nowhere
says 0 'wrote f.yaml' config new --model quickstart --gpus 8 --set 'data.sources=[nowhere]' --output f.yaml
[[ $("$trireme" check f.yaml --get data.sources) == *nowhere* ]] || fail "data.sources does not name the missing data"
says 3 'text.bin.idx: No such file or directory; name the pair without the extension: text' data inspect text.bin
says 2 '; llama_8b is a preset: trireme config new --model llama_8b --gpus N --output my.yaml writes' check llama_8b
says 2 'did you mean llama_8b?' config new --model lama_8b --gpus 16

echo "a new config from a Hugging Face folder"
mkdir hf
cat >hf/config.json <<'JSON'
{"model_type": "qwen2", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
 "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}
JSON
says 0 'wrote hf.yaml' config new --hf hf --gpus 2 --data text --name mine --output hf.yaml
head -3 hf.yaml | grep -q '# From hf/config.json, for 2 ranks' || fail "the config does not name its source: $(head -3 hf.yaml)"
[[ $("$trireme" check hf.yaml --get model.qkv_bias --get model.rope_scaling --get model.rope_original_seq_len \
  --get model.bias --get model.seq_len --get run.name) == $'true\nyarn\n16\nfalse\n64\nmine' ]] || fail "the config does not have the model of hf"
says 0 'topology: 2 ranks' check hf.yaml
sed -i 's/yarn/dynamic/' hf/config.json
says 3 'hf/config.json: rope_scaling.type: "dynamic" is not supported' config new --hf hf --gpus 2
says 3 'nowhere/config.json' config new --hf nowhere --gpus 2
says 2 'give either --model NAME or --hf FOLDER' config new --hf hf --model llama_8b --gpus 2
says 2 'give either --model NAME or --hf FOLDER' config new --gpus 2

echo "config diff prints the differences"
says 0 'EQUAL: 0 fields differ' config diff a.yaml a.yaml
sed 's/^  steps: .*/  steps: 7/' a.yaml >c.yaml
says 1 'DIFFERENT: 1 field differs' config diff a.yaml c.yaml
says 1 'run.steps: 250 in A, 7 in B' config diff a.yaml c.yaml
says 1 '{"schema":1,"a":"a.yaml","b":"c.yaml","equal":false,"fields":[{"field":"run.steps","a":"250","b":"7"}]}' \
  config diff a.yaml c.yaml --json
mkdir run && cp a.yaml run/config.yaml
says 0 '{"schema":1,"a":"run","b":"a.yaml","equal":true,"fields":[]}' config diff run a.yaml --json
says 2 'none.yaml: cannot read the config' config diff a.yaml none.yaml

[[ $failures -eq 0 ]] || exit 1
echo "all well"
