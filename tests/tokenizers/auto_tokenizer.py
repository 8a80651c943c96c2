#!/usr/bin/env python3
"""What AutoTokenizer, of transformers, makes of exported folders: the ids that trireme trains on.

    auto_tokenizer.py TRIREME SCRATCH_DIR

For bytes, SentencePiece, and tokenizer.json with and without a token that begins documents: prepare, train a step,
export and import, without torch. The ids of AutoTokenizer are those of `data prepare`, and decode to the text again.
"""
import json
import os
import pathlib
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
# Names of the formats that export writes: the class that AutoTokenizer takes may hang on them.
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
    """`begins`: the number of tokens that begin a document."""
    agree.write_documents(SCRATCH / "text.jsonl", CONTENTS)
    ids = agree.our_ids(TRIREME, spec, SCRATCH / "text.jsonl", SCRATCH / "text")
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
    if tokenizer.eos_token_id != model["eos_token_id"] or tokenizer.bos_token_id != model["bos_token_id"]:
        sys.exit(f"{name}: bos {tokenizer.bos_token_id}, eos {tokenizer.eos_token_id}")
    for text, ours in zip(CONTENTS, ids):
        theirs = tokenizer(text)["input_ids"]
        if theirs != ours.tolist():
            sys.exit(f"{name}: {text!r}:\n{theirs}\nexpected\n{ours.tolist()}")
        expected = unicodedata.normalize("NFC", text) if name == "qwen" else text
        if tokenizer.decode(theirs[begins:], clean_up_tokenization_spaces=False) != expected:
            sys.exit(f"{name}: {tokenizer.decode(theirs)!r} is not {text!r}")
    print(f"{name}: AutoTokenizer of transformers {transformers.__version__} makes the same ids "
          f"({type(tokenizer).__name__}, {layout})")
    if name not in ("sentencepiece", "llama3"):
        return
    # And back: the imported run has the tokenizer, and tokens prepared with either are the same tokenizer's.
    run(TRIREME, "checkpoint", "import", out, f"runs/{name}_back")
    run(TRIREME, "train", f"runs/{name}_back/config.yaml", "--set", "data.sources=[text]", "--set", "run.steps=1",
        "--set", "data.global_batch=2")
    run(TRIREME, "generate", f"runs/{name}_back", "--prompt", "déjà vu", "--tokens", "2")
    run(TRIREME, "eval", f"runs/{name}_back", "--data", "text", "--set", "data.global_batch=2")


def main():
    documents = agree.corpus(0.5)
    made = agree.tokenizers_of(documents[:60])
    (SCRATCH / "plain.txt").write_text("\n".join(documents[:60]))
    run(TRIREME, "data", "train-tokenizer", "--vocab", 2000, "--output", "sp.model", "plain.txt")
    check_export("bytes", "bytes", "gpt2", 257, 0)
    check_export("sentencepiece", SCRATCH / "sp.model", "llama", 2000, 0)
    check_export("gpt2", agree.save(made["gpt2"], "gpt2", SCRATCH), "gpt2", 6000, 0)
    check_export("llama3", agree.save(made["llama3"], "llama3", SCRATCH), "llama", 12100, 1)
    check_export("qwen", agree.save(made["qwen"], "qwen", SCRATCH), "mistral", 8100, 0)
    if tiktoken is not None:
        import tiktoken_agree
        ranks = tiktoken_agree.trained_ranks(agree.LLAMA3, documents[:60], 4000)
        tiktoken_agree.save(ranks, SCRATCH / "llama3.tiktoken")
        check_export("tiktoken", SCRATCH / "llama3.tiktoken", "llama", 5000, 1)
    # What the files beside say, over what the tokenizer itself says.
    told = agree.save(made["llama3"], "told not to", SCRATCH)
    (told / "tokenizer_config.json").write_text('{"add_bos_token": false, "eos_token": "<|endoftext|>"}')
    check_export("told_not_to", told, "llama", 12100, 0)
    made["gpt2"].add_special_tokens(["<s>"])
    made["gpt2"].post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", made["gpt2"].token_to_id("<|endoftext|>"))])
    told = agree.save(made["gpt2"], "told to", SCRATCH)
    (told / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": "<s>", "eos_token": "<|endoftext|>"}')
    check_export("told_to", told, "gpt2", 6100, 1)
    print("all well")


if __name__ == "__main__":
    main()
