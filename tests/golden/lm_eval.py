#!/usr/bin/env python3
"""Runs the command line of lm-evaluation-harness on an exported model and compares its log-likelihoods with those of
the native logits.

    lm_eval.py BIN_DIR SCRATCH_DIR

The task computes the perplexity of a few texts. Nothing is downloaded.
"""
import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np

BIN, SCRATCH = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
TEXTS = ["In the beginning was the word.", "drei Gäule und 馬", "bottles on the wall, bottles"]
TASK = """
task: native
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}]
"""


def run(*command):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(SCRATCH / "hub"),
                   "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([str(word) for word in command], cwd=SCRATCH, capture_output=True, text=True, errors="replace",
                          env=environment)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def native_bits_per_byte(checkpoint):
    """Returns the bits per byte of the texts. As lm_eval does, puts the token that ends a document before each text."""
    nats = 0.0
    for text in TEXTS:
        ids = [256, *text.encode()]
        np.asarray(ids, dtype="<i4").tofile(SCRATCH / "ids.i32")
        run(f"{BIN}/logits", checkpoint, "ids.i32", "logits.f32")
        logits = np.fromfile(SCRATCH / "logits.f32", dtype="<f4").reshape(len(ids), -1).astype(np.float64)
        nats -= sum(row[i] - np.logaddexp.reduce(row) for row, i in zip(logits, ids[1:]))
    return nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)


def main():
    (SCRATCH / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (SCRATCH / "text.txt").write_text("".join(f"{n} green bottles hanging on the wall\n" for n in range(300)))
    run(f"{BIN}/trireme", "data", "prepare", "--output", "text", "text.txt")
    config = {"run": {"name": "tiny", "steps": 20, "device": "cpu", "eval_batches": 0, "sample_tokens": 0},
              "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 257, "seq_len": 64, "norm": "rmsnorm",
                        "activation": "swiglu", "position": "rope", "bias": False, "init_std": 0.2},
              "data": {"sources": ["text"], "global_batch": 4}, "lr": {"peak": 0.01}}
    (SCRATCH / "tiny.yaml").write_text(json.dumps(config))
    run(f"{BIN}/trireme", "train", "tiny.yaml")
    run(f"{BIN}/trireme", "checkpoint", "export", "runs/tiny", "out")
    (SCRATCH / "tasks").mkdir()
    (SCRATCH / "tasks/native.yaml").write_text(TASK.replace("texts.jsonl", str(SCRATCH / "texts.jsonl")))
    run(sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", "pretrained=out,dtype=float32", "--tasks", "native",
        "--include_path", "tasks", "--device", "cpu", "--output_path", "results")
    results = json.loads(next((SCRATCH / "results").rglob("*.json")).read_text())["results"]["native"]
    reference, native = results["bits_per_byte,none"], native_bits_per_byte("runs/tiny")
    print(f"bits per byte: lm_eval {reference:.6f}, native logits {native:.6f}")
    if not math.isclose(reference, native, rel_tol=1e-4):
        sys.exit("the bits per byte differ")
    print("all well")


if __name__ == "__main__":
    main()
