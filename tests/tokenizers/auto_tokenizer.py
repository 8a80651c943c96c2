#!/usr/bin/env python3
"""Checks that AutoTokenizer of transformers, given an exported folder, produces the ids that trireme trains on.

    auto_tokenizer.py TRIREME SCRATCH_DIR

The script prepares data, trains one step, exports and imports for the byte tokenizer, SentencePiece, and tokenizer.json
with and without a token that begins documents. It does not need torch. The ids of AutoTokenizer must equal those of
`data prepare` and decode to the original text.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unicodedata

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import transformers
from tokenizers import processors

import agree

try:
    import tiktoken
except ImportError:
    tiktoken = None

TRIREME, SCRATCH = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
CONTENTS = [text for name, text in agree.SAMPLES.items() if name != "tokens"]
# The model formats that export writes: the class that AutoTokenizer chooses can depend on them.
LAYOUTS = {"gpt2": {"norm": "layernorm", "activation": "gelu", "position": "learned", "bias": True},
           "llama": {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "bias": False},
           "mistral": {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "bias": False, "window": 4}}


def run(*command):
    done = subprocess.run([str(word) for word in command], cwd=SCRATCH, capture_output=True, text=True,
                          errors="replace")
    if done.returncode != 0:
        sys.exit(f"status {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_export(name, spec, layout, vocab, begins):
    """Trains and exports a run with the tokenizer `spec` and compares ids. `begins` is the number of tokens that begin
    a document."""
    agree.write_documents(SCRATCH / "text.jsonl", CONTENTS)
    ids = agree.native_ids(TRIREME, spec, SCRATCH / "text.jsonl", SCRATCH / "text")
    config = {"run": {"name": name, "steps": 1, "device": "cpu", "eval_batches": 0, "sample_tokens": 3},
              "model": {"layers": 1, "hidden": 16, "heads": 2, "vocab": vocab, "seq_len": 16, **LAYOUTS[layout]},
              "data": {"sources": ["text"], "tokenizer": str(spec), "global_batch": 2}, "lr": {"peak": 0.01}}
    (SCRATCH / f"{name}.yaml").write_text(json.dumps(config))
    run(TRIREME, "train", f"{name}.yaml")
    out = SCRATCH / "exported" / name
    print(run(TRIREME, "checkpoint", "export", f"runs/{name}", out).splitlines()[-1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    model = json.loads((out / "config.json").read_text())
    if settings["add_bos_token"] != (begins > 0) or (model["bos_token_id"] is None) != (begins == 0):
        sys.exit(f"{name}: {settings}, {model}")
    # A folder may have a bos token that `data prepare` does not put before documents.
    if tokenizer.eos_token_id != model["eos_token_id"] or model["bos_token_id"] not in (None, tokenizer.bos_token_id):
        sys.exit(f"{name}: bos {tokenizer.bos_token_id}, eos {tokenizer.eos_token_id}")
    for text, native in zip(CONTENTS, ids):
        reference = tokenizer(text)["input_ids"]
        if reference != native.tolist():
            sys.exit(f"{name}: {text!r}:\n{reference}\nexpected\n{native.tolist()}")
        expected = unicodedata.normalize("NFC", text) if name == "qwen" else text
        if tokenizer.decode(reference[begins:], clean_up_tokenization_spaces=False) != expected:
            sys.exit(f"{name}: {tokenizer.decode(reference)!r} is not {text!r}")
    print(f"{name}: AutoTokenizer of transformers {transformers.__version__} produces the same ids "
          f"({type(tokenizer).__name__}, {layout})")
    if name not in ("sentencepiece", "llama3"):
        return
    # The imported run contains the tokenizer, and it accepts the tokens since the fingerprints are equal.
    run(TRIREME, "checkpoint", "import", out, f"runs/{name}_back")
    run(TRIREME, "train", f"runs/{name}_back/config.yaml", "--set", "data.sources=[text]", "--set", "run.steps=1",
        "--set", "data.global_batch=2")
    run(TRIREME, "generate", f"runs/{name}_back", "--prompt", "déjà vu", "--tokens", "2")
    run(TRIREME, "eval", f"runs/{name}_back", "--data", "text", "--set", "data.global_batch=2")


def check_types():
    """Checks that the lists of model types in folder_tokens.cpp equal those of the transformers version that it
    names."""
    from transformers.models.auto import tokenization_auto as auto
    source = (pathlib.Path(__file__).resolve().parents[2] / "io/tokens/bpe/folder_tokens.cpp").read_text()
    version = re.search(r"transformers (\d+\.\d+)", source)[1]
    if not transformers.__version__.startswith(version + "."):
        print(f"not compared: the lists of model types are from transformers {version}, not {transformers.__version__}")
        return
    classes = {"kGpt2": "GPT2Tokenizer", "kNeoX": "GPTNeoXTokenizer", "kQwen2": "Qwen2Tokenizer",
               "kQwen35": "Qwen3_5Tokenizer", "kCohere": "CohereTokenizer", "kAsItIs": "TokenizersBackend"}
    reference = {key: (name or "").removesuffix("Fast").replace("MistralCommonBackend", "TokenizersBackend")
              for key, name in auto.TOKENIZER_MAPPING_NAMES.items()}
    expected = {native: {key for key, name in reference.items() if name == of} for native, of in classes.items()}
    expected["kMisnamed"] = {key for key in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
                             if reference[key] in classes.values() and reference[key] != "TokenizersBackend"}
    for native, types in expected.items():
        listed = re.search(r"string_view " + native + r"\[\] = \{(.*?)\};", source, re.S)[1]
        listed = set(re.findall(r'"([^"]+)"', listed))
        if listed != types:
            sys.exit(f"{native}: without {sorted(types - listed)}, and with {sorted(listed - types)}")
    print(f"{sum(map(len, expected.values()))} model types have the classes of transformers {version}")


def check_folders(base):
    """Puts randomized files next to tokenizer.json. `data prepare` must produce the ids of AutoTokenizer or refuse the
    folder."""
    rng, names = random.Random(1), ["<|a|>", "<|b|>", "<|c|>", "!", "the", "<|endoftext|>"]
    text = "x <|a|> <|b|>the <|c|>!<|endoftext|> <|d|> a"
    agree.write_documents(SCRATCH / "folders.jsonl", [text])
    last = max(base.get_vocab().values())

    def flags(content):
        return {"content": content, "single_word": False, **{key: rng.random() < 0.3 for key in (
            "lstrip", "rstrip", "normalized", "special")}}

    def settings():
        made = {"eos_token": rng.choice(names[:1] + names[-1:])}
        if rng.random() < 0.4:
            made["added_tokens_decoder"] = {str(base.token_to_id("<|endoftext|>")): flags("<|endoftext|>")}
            for i, name in enumerate(rng.sample(names[:3], rng.randrange(4))):
                made["added_tokens_decoder"][str(last + 1 + i)] = flags(name)
        for key in ("pad_token", "image_token", "bos_token"):
            if rng.random() < 0.3:
                made[key] = rng.choice(names)
                if rng.random() < 0.5:
                    made[key] = {"__type": "AddedToken", **flags(made[key])}
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if rng.random() < 0.3:
                made[key] = rng.sample(names, rng.randrange(3))
        for key in ("add_bos_token", "add_prefix_space", "split_special_tokens"):
            if rng.random() < 0.2:
                made[key] = True
        if rng.random() < 0.7:
            made["tokenizer_class"] = rng.choice(["PreTrainedTokenizerFast", "GPT2TokenizerFast", "GPT2Tokenizer",
                                                  "LlamaTokenizerFast", "NoSuchTokenizer"])
        return made
    def change_added(path):
        """Adds a token to tokenizer.json, whose id AutoTokenizer may change, and may make tokens not special."""
        made = json.loads(path.read_text())
        token = {"id": last + 1 + (rng.random() < 0.3), **flags("<|d|>")}
        made["added_tokens"].insert(rng.randrange(2) * len(made["added_tokens"]), token)
        if rng.random() < 0.3:
            made["model"]["vocab"]["<|d|>"] = token["id"]
        made["added_tokens"][0]["special"] = rng.random() < 0.5
        path.write_text(json.dumps(made))

    same = refused = 0
    for number in range(60):
        folder = agree.save(base, f"folder {number}", SCRATCH)
        if number >= 40:
            change_added(folder / "tokenizer.json")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings()))
        if rng.random() < 0.3:
            (folder / "special_tokens_map.json").write_text(json.dumps(
                {"additional_special_tokens": rng.sample(names, 2), "pad_token": flags(rng.choice(names))}))
        if rng.random() < 0.3:
            (folder / "added_tokens.json").write_text(json.dumps({name: last + 1 + i for i, name in enumerate(
                rng.sample(names[:3], rng.randrange(3)))}))
        if rng.random() < 0.3:
            (folder / "config.json").write_text(json.dumps({"model_type": rng.choice(["gpt2", "llama", "mistral"])}))
        done = subprocess.run([TRIREME, "data", "prepare", "--force", "--tokenizer", folder, "--output", folder / "o",
                               SCRATCH / "folders.jsonl"], capture_output=True, text=True)
        if done.returncode != 0:
            refused += 1
            continue
        try:
            reference = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        except (TypeError, ValueError) as error:
            print(f"{folder.name}: AutoTokenizer cannot read it: {error}")
            continue
        native = agree.native_ids(TRIREME, folder, SCRATCH / "folders.jsonl", folder / "o")[0].tolist()
        if native != reference:
            sys.exit(f"{folder}: {native}\nexpected\n{reference}\n" + "".join(
                f"{file.name}: {file.read_text()}\n" for file in folder.glob("*_*.json")))
        same += 1
    print(f"{same} randomized folders have the ids of AutoTokenizer, {refused} are refused")
    if same < 14:
        sys.exit("expected at least 14 readable folders")


def main():
    documents = agree.corpus(0.5)
    made = agree.tokenizers_of(documents[:60])
    (SCRATCH / "plain.txt").write_text("\n".join(documents[:60]))
    run(TRIREME, "data", "train-tokenizer", "--vocab", 2000, "--output", "sp.model", "plain.txt")
    check_export("bytes", "bytes", "gpt2", 257, 0)
    check_export("sentencepiece", SCRATCH / "sp.model", "llama", 2000, 0)
    check_export("gpt2", agree.save(made["gpt2"], "gpt2", SCRATCH), "gpt2", 6000, 0)
    if int(transformers.__version__.split(".")[0]) >= 5:
        check_types()
        check_folders(made["gpt2"])
    check_export("llama3", agree.save(made["llama3"], "llama3", SCRATCH), "llama", 12100, 1)
    check_export("qwen", agree.save(made["qwen"], "qwen", SCRATCH), "mistral", 8100, 0)
    if tiktoken is not None:
        import tiktoken_agree
        ranks = tiktoken_agree.trained_ranks(agree.LLAMA3, documents[:60], 4000)
        tiktoken_agree.save(ranks, SCRATCH / "llama3.tiktoken")
        check_export("tiktoken", SCRATCH / "llama3.tiktoken", "llama", 5000, 1)
    # add_bos_token has no effect if tokenizer.json exists, since its post_processor decides.
    bos = agree.save(made["llama3"], "without begin", SCRATCH)
    (bos / "tokenizer_config.json").write_text('{"add_bos_token": false, "eos_token": "<|endoftext|>"}')
    check_export("without_begin", bos, "llama", 12100, 1)
    made["gpt2"].add_special_tokens(["<s>"])
    made["gpt2"].post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", made["gpt2"].token_to_id("<|endoftext|>"))])
    bos = agree.save(made["gpt2"], "with begin", SCRATCH)
    (bos / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": "<s>", "eos_token": "<|endoftext|>"}')
    check_export("with_begin", bos, "gpt2", 6100, 0)
    print("all well")


if __name__ == "__main__":
    main()
