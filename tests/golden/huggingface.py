#!/usr/bin/env python3
"""Exports native models and loads them with transformers, and imports models of transformers. The logits must agree.

    huggingface.py BIN_DIR MPIRUN SCRATCH_DIR

The weights are random and nothing is downloaded. Every conversion is also reversed and must restore the same bytes.
Each imported model trains one AdamW step; the new parameters, which reveal every gradient, must equal those of PyTorch.
Some of the models are split over several ranks: the tests of mp_parity compare layouts.
"""
import json
import os
import struct
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # several ranks cannot share one GPU, so everything runs on the CPU
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-5
IS_5 = int(transformers.__version__.split(".")[0]) >= 5
BIN, MPIRUN, SCRATCH = sys.argv[1:4]

# Native settings; large initial values make the logits meaningful.
GPT2 = {"norm": "layernorm", "activation": "gelu", "position": "learned", "bias": "true"}
LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "bias": "false"}
GEMMA = {**LLAMA, "activation": "geglu", "norm_position": "both", "norm_offset": 1, "embedding_scale": 32**0.5,
         "kv_heads": 2, "window": 5, "layer_pattern": ["window", "full"]}
NATIVE = {
    "gpt2_tied": GPT2,
    "gpt2_untied_without_biases": {**GPT2, "tie_embeddings": "false", "bias": "false", "ffn_hidden": 40},
    "llama_tied_gqa": {**LLAMA, "kv_heads": 2, "norm_eps": 1e-3},
    "llama_untied": {**LLAMA, "tie_embeddings": "false", "rope_theta": 500.0},
    "llama_untied_biases_one_kv_head": {**LLAMA, "kv_heads": 1, "tie_embeddings": "false", "bias": "true"},
    "mistral": {**LLAMA, "kv_heads": 2, "window": 5, "tie_embeddings": "false"},
    "llama3": {**LLAMA, "kv_heads": 2, "rope_scaling": "llama3", "rope_factor": 8, "rope_original_seq_len": 8},
    "qwen2": {**LLAMA, "kv_heads": 2, "qkv_bias": "true", "rope_scaling": "linear", "rope_factor": 2.5},
    "qwen3": {**LLAMA, "kv_heads": 2, "head_dim": 16, "qk_norm": "head"},
    "qwen3_yarn": {**LLAMA, "kv_heads": 2, "head_dim": 16, "qk_norm": "head", "rope_scaling": "yarn", "rope_factor": 4,
                   "rope_original_seq_len": 8},
    "mixtral": {**LLAMA, "kv_heads": 2, "tie_embeddings": "false", "experts": 4, "expert_hidden": 40},
    "qwen3_moe": {**LLAMA, "kv_heads": 2, "head_dim": 16, "qk_norm": "head", "tie_embeddings": "false", "experts": 6,
                  "experts_per_token": 3, "expert_hidden": 24, "router_renormalize": "false"},
    "neox": {**GPT2, "activation": "gelu_erf", "position": "rope", "rope_fraction": 0.5, "block": "parallel",
             "parallel_norms": 2, "tie_embeddings": "false"},
    "olmo2": {**LLAMA, "kv_heads": 2, "qk_norm": "full", "norm_position": "post", "tie_embeddings": "false"},
    "mistral_wide_heads": {**LLAMA, "kv_heads": 2, "head_dim": 16, "window": 5, "tie_embeddings": "false"},
    "gemma2": {**GEMMA, "attention_softcap": 2.0, "logit_softcap": 4.0, "attention_scale": 0.25},
    "gemma3": {**GEMMA, "head_dim": 16, "qk_norm": "head", "rope_theta": 1000.0, "rope_theta_local": 100.0,
               "rope_scaling": "linear", "rope_factor": 2},
}
SMALL = {"initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA_SIZES = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
               "num_attention_heads": 4, "max_position_embeddings": 24, **SMALL}
SCALED_SIZES = {**LLAMA_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 8}  # texts have 24 tokens
GPT2_SIZES = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, **SMALL}
HUGGING_FACE = {
    "gpt2_tied": ("GPT2", GPT2_SIZES),
    "gpt2_untied": ("GPT2", {**GPT2_SIZES, "n_inner": 48, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "llama_untied_gqa": ("Llama", {**LLAMA_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}),
    "llama_tied_biases": ("Llama", {**LLAMA_SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True,
                                    "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3}),
    "mistral": ("Mistral", {**LLAMA_SIZES, "num_key_value_heads": 2, "sliding_window": 6}),
    "llama3": ("Llama", {**SCALED_SIZES, "tie_word_embeddings": True, "rope_theta": 100.0,
                         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.25,
                                          "high_freq_factor": 1.0, "original_max_position_embeddings": 8}}),
    "llama_linear": ("Llama", {**SCALED_SIZES, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "mistral_without_window": ("Mistral", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 16,
                                           "sliding_window": None}),
    "qwen2_tied": ("Qwen2", {**LLAMA_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2", {**LLAMA_SIZES, "num_key_value_heads": 2, "use_sliding_window": True,
                               "sliding_window": 6, "max_window_layers": 0}),
    "qwen2_yarn": ("Qwen2", {**SCALED_SIZES, "rope_theta": 100.0,
                             "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_slow": 0.1}}),
    "qwen3": ("Qwen3", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_yarn": ("Qwen3", {**SCALED_SIZES, "head_dim": 16, "rope_theta": 100.0,
                             "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3,
                                              "beta_fast": 1.0, "beta_slow": 0.1,
                                              "original_max_position_embeddings": 8}}),
    "mixtral": ("Mixtral", {**LLAMA_SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": None}),
    "qwen3_moe": ("Qwen3Moe", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 24,
                               "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "neox": ("GPTNeoX", {**LLAMA_SIZES, "rotary_pct": 0.5, "rotary_emb_base": 100}),
    "neox_sequential": ("GPTNeoX", {**LLAMA_SIZES, "rotary_pct": 0.25, "use_parallel_residual": False,
                                    "hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {**LLAMA_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "rope_theta": 100.0}),
    "llama_narrow_heads": ("Llama", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 6}),
    "gemma2": ("Gemma2", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 24,
                          "sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0}),
    "gemma2_without_softcaps": ("Gemma2", {**LLAMA_SIZES, "num_key_value_heads": 4, "head_dim": 8,
                                           "query_pre_attn_scalar": 8, "sliding_window": 24,
                                           "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("Gemma3", {**LLAMA_SIZES, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 24,
                          "sliding_window": 6, "sliding_window_pattern": 2,
                          "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 1000.0,
                          "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
}
# Models that train on several ranks, and models that are also converted to or from 16 bits: SPLIT_NATIVE and HALVED.
SPLIT_NATIVE = {"gpt2_tied", "llama_tied_gqa", "llama_untied_biases_one_kv_head", "neox", "olmo2"}
SPLIT = {"gpt2_tied", "llama_untied_gqa", "mistral", "qwen2_yarn", "qwen3_yarn", "neox", "olmo2", "gemma2", "gemma3"}
PACKED = {"llama_tied_gqa", "llama3", "qwen3"}  # models to which transformers applies a matrix as the mask
EXPERTS = {"mixtral", "qwen3_moe"}
HALVED = {"gpt2_untied", "llama_tied_biases", "qwen3"}


def run(*command, status=0):
    done = subprocess.run([str(word) for word in command], cwd=SCRATCH, capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"status {done.returncode}, expected {status}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def trireme(*words, ranks=1, **options):
    launcher = (MPIRUN, "-n", ranks) if ranks > 1 else ()
    return run(*launcher, os.path.join(BIN, "trireme"), *words, **options)


def native_logits(checkpoint, ids):
    np.asarray(ids, dtype="<i4").tofile(os.path.join(SCRATCH, "ids.i32"))
    run(os.path.join(BIN, "logits"), checkpoint, "ids.i32", "logits.f32")
    return np.fromfile(os.path.join(SCRATCH, "logits.f32"), dtype="<f4").reshape(len(ids), -1)


def write_tokens(prefix, ids):
    """Writes a token file that holds one document, in the layout that io/tokens/token_file.h describes."""
    with open(os.path.join(SCRATCH, prefix + ".bin"), "wb") as file:
        file.write(np.asarray(ids, dtype="<u2").tobytes())
    with open(os.path.join(SCRATCH, prefix + ".idx"), "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(ids), 0, 0, 1))


def reference_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def compare(name, native, reference, what="logits"):
    if native.shape != reference.shape:
        sys.exit(f"{name}: {what} {native.shape} and {reference.shape}")
    spread, worst = reference.std(), np.abs(native - reference).max()
    good = worst <= TOLERANCE * max(1, spread) and spread > 0.1
    print(f"{'within' if good else 'BEYOND'} {TOLERANCE:g}: {name}: {what} differ by {worst:.2g}, "
          f"the standard deviation is {spread:.2g}")
    if not good:
        sys.exit(1)


def compare_documents(name, checkpoint, model, ids):
    """Compares the logits, less a constant per position, of a sample of three documents. transformers gets
    position_ids, and the mask as a matrix."""
    starts = [0] * 5 + [5] * 12 + [17] * 7
    np.asarray(ids, dtype="<i4").tofile(os.path.join(SCRATCH, "ids.i32"))
    np.asarray(starts, dtype="<i4").tofile(os.path.join(SCRATCH, "starts.i32"))
    run(os.path.join(BIN, "logits"), checkpoint, "ids.i32", "logits.f32", "starts.i32")
    native = np.fromfile(os.path.join(SCRATCH, "logits.f32"), dtype="<f4").reshape(len(ids), -1)
    at, start = torch.arange(len(ids)), torch.tensor(starts)
    visible = (at[None, :] <= at[:, None]) & (at[None, :] >= start[:, None])
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        result = model(torch.tensor([ids]), attention_mask=mask, position_ids=(at - start)[None], use_cache=False)
    reference = torch.log_softmax(result.logits[0].float(), -1)[:, ::16].numpy()
    compare(f"{name}, documents", native, reference, "log-probabilities")


def load(folder, **settings):
    """Loads the folder with from_pretrained and returns the model. Exits if a weight is missing or unexpected."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(SCRATCH, folder), output_loading_info=True, attn_implementation="eager", **settings)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{folder}: {kind}: {info[kind]}")
    return model.float().eval()


def tensors_of(folder):
    tensors = {}
    for name in sorted(os.listdir(os.path.join(SCRATCH, folder))):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(SCRATCH, folder, name)))
    return tensors


def same(name, a, b):
    if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
        sys.exit(f"{name}: the tensors differ")


def export_native(name, model):
    """Trains one step, which changes every initial value, exports the run, compares logits and imports it."""
    config = {"run": {"name": name, "steps": 1, "device": "cpu", "eval_batches": 0, "sample_tokens": 0},
              "model": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 257, "seq_len": 24, "init_std": 0.2},
              "data": {"sources": ["text"], "global_batch": 4}, "parallel": {"tp": 1, "pp": 1, "dp": 1},
              "lr": {"peak": 0.01}}
    config["model"].update({k: v == "true" if v in ("true", "false") else v for k, v in model.items()})
    if name in SPLIT_NATIVE:
        tp = min(2, config["model"].get("kv_heads", 2))
        config["parallel"] = {"tp": tp, "pp": 2, "dp": 2 // tp}
    with open(os.path.join(SCRATCH, name + ".yaml"), "w") as file:
        json.dump(config, file)
    trireme("train", name + ".yaml", ranks=4 if name in SPLIT_NATIVE else 1)
    run_dir = "runs/" + name
    ids = list(np.random.default_rng(1).integers(0, 257, 24))

    trireme("checkpoint", "export", run_dir, name)
    compare(f"{name}, exported", native_logits(run_dir, ids), reference_logits(load(name), ids))
    if name in PACKED:
        compare_documents(name, run_dir, load(name), ids)

    trireme("checkpoint", "export", run_dir, name + "_parts", "--max-shard-size", "2e-5")
    if not os.path.exists(os.path.join(SCRATCH, name + "_parts/model.safetensors.index.json")):
        sys.exit(f"{name}: --max-shard-size did not split the weights")
    same(name + ", in several files", tensors_of(name), tensors_of(name + "_parts"))
    load(name + "_parts")

    trireme("checkpoint", "import", name + "_parts", "runs/back_" + name)
    if model.get("bias") != "false" or "norm" not in model or model["norm"] == "rmsnorm":
        trireme("checkpoint", "diff", run_dir, "runs/back_" + name, "--only", "model/")
    else:  # transformers' GPT-2 has biases, which the import adds as zeros
        trireme("checkpoint", "diff", run_dir, "runs/back_" + name, "--only", "model/", status=1)

    if name not in SPLIT_NATIVE:
        return
    trireme("checkpoint", "export", run_dir, name + "_bf16", "--dtype", "bf16")
    same(name + ", bf16", {k: v.bfloat16() for k, v in tensors_of(name).items()}, tensors_of(name + "_bf16"))
    load(name + "_bf16")


def compare_step(name, model, run_dir):
    """Compares an AdamW step with PyTorch. With eps = 1 and a learning rate of 1, a parameter moves by
    g / (1 + |g|), so that the result reveals the gradient."""
    samples, length, lr, decay = 4, 24, 1.0, 0.1
    parts = 2 if name in SPLIT else 1
    ids = np.random.default_rng(3).integers(0, model.config.vocab_size, samples * length + 1)
    write_tokens("step", ids)
    settings = {"run.steps": 1, "run.eval_batches": 0, "run.sample_tokens": 0, "data.sources": "[step]",
                "data.validation_fraction": 0, "data.global_batch": samples, "data.micro_batch": 1,
                "parallel.tp": parts, "parallel.pp": parts, "parallel.dp": parts, "lr.rule": "constant", "lr.peak": lr, "optimizer.eps": 1,
                "optimizer.weight_decay": decay, "optimizer.clip": 0}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    trireme("train", run_dir + "/config.yaml", *words, ranks=parts**3)
    trireme("checkpoint", "export", run_dir, "stepped_" + name)

    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0}],
                                  lr=lr, betas=(0.9, 0.95), eps=1.0)
    logits = model(torch.tensor(ids[:-1].reshape(samples, length)), use_cache=False).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(ids[1:])).backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    optimizer.step()
    expected = dict(model.named_parameters())
    if name in EXPERTS:  # transformers 5 has the experts of a layer in one parameter, and saves them apart
        for folder, values in (("expected_" + name, None), ("gradients_" + name, gradients)):
            with torch.no_grad():
                for key, p in model.named_parameters():
                    p.copy_(values[key] if values else p)
            model.save_pretrained(os.path.join(SCRATCH, folder))
        expected, gradients = tensors_of("expected_" + name), tensors_of("gradients_" + name)
    worst, least = 0.0, 1.0
    for key, stepped in tensors_of("stepped_" + name).items():
        worst = max(worst, (stepped - expected[key].detach()).abs().max().item())
        least = min(least, gradients[key].abs().max().item())
    good = worst <= TOLERANCE and least > 10 * TOLERANCE
    print(f"{'within' if good else 'BEYOND'} {TOLERANCE:g}: {name}: a step on {parts**3} rank(s) differs by "
          f"{worst:.2g}, the largest gradients of all tensors exceed {least:.2g}")
    if not good:
        sys.exit(1)


def import_hugging_face(name, family, settings):
    config_class = family + ("TextConfig" if family == "Gemma3" else "Config")
    config = getattr(transformers, config_class)(**settings, attn_implementation="eager")
    torch.manual_seed(7)
    model = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else family + "ForCausalLM")(config).eval()
    with torch.no_grad():  # changes norms and biases, which are initialised to ones and zeros
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(os.path.join(SCRATCH, "hf_" + name))
    run_dir = "runs/imported_" + name
    scaled = settings.get("rope_scaling")
    ids = list(np.random.default_rng(2).integers(0, config.vocab_size, 24))
    trireme("checkpoint", "import", "hf_" + name, run_dir, "--set", "model.seq_len=24")
    compare(f"{name}, imported", native_logits(run_dir, ids), reference_logits(model, ids))

    trireme("checkpoint", "export", run_dir, "back_" + name)
    same(name + ", exported again", tensors_of("hf_" + name), tensors_of("back_" + name))
    # Versions before 4.50 use max_position_embeddings as the original length of yarn.
    back = load("back_" + name, **({"max_position_embeddings": 8} if scaled and not IS_5 else {}))
    if type(back) is not type(model):
        sys.exit(f"{name}: {type(model).__name__} is exported as {type(back).__name__}")
    compare(f"{name}, exported again", native_logits(run_dir, ids), reference_logits(back, ids))

    for dtype in (torch.bfloat16, torch.float16) if name in HALVED else ():
        folder = f"hf_{name}_{str(dtype)[6:]}"
        half = type(model)(config)
        half.load_state_dict(model.state_dict())
        half.to(dtype).save_pretrained(os.path.join(SCRATCH, folder))
        trireme("checkpoint", "import", folder, "runs/" + folder)
        compare(f"{name}, imported from {dtype}", native_logits("runs/" + folder, ids),
                reference_logits(load(folder), ids))

    compare_step(name, model, run_dir)


def byte_tokenizer(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(SCRATCH, folder))
    text = "In the beginning,\n\tdrei Gäule und 馬 \x00\x7f  two  spaces"
    ids = tokenizer(text)["input_ids"]
    if ids != list(text.encode()) or tokenizer.decode(ids) != text or tokenizer.eos_token_id != 256:
        sys.exit(f"the tokenizer differs: {ids}")
    print("byte tokenizer exported as tokenizer.json: the ids are equal")


def is_known(name):
    known = not name.startswith("qwen3") or hasattr(transformers, "Qwen3ForCausalLM")  # needs version 4.51
    known = known and (name != "qwen3_moe" or hasattr(transformers, "Qwen3MoeForCausalLM"))  # 4.51
    known = known and (name != "olmo2" or hasattr(transformers, "Olmo2ForCausalLM"))  # needs version 4.47
    known = known and (not name.startswith("gemma3") or hasattr(transformers, "Gemma3ForCausalLM"))  # 4.50
    known = known and (name != "qwen2_window" or IS_5)  # earlier versions ignore the window in eager attention
    if not known:
        print(f"skipped: {name}, which transformers {transformers.__version__} does not support")
    return known


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with open(os.path.join(SCRATCH, "text.txt"), "w") as file:
        file.write("".join(f"{n} green bottles hanging on the wall\n" for n in range(300)))
    trireme("data", "prepare", "--format", "text", "--output", "text", "text.txt")
    for name, model in NATIVE.items():
        if is_known(name):
            export_native(name, model)
    byte_tokenizer("llama_untied")
    for name, (family, settings) in HUGGING_FACE.items():
        if is_known(name):
            import_hugging_face(name, family, settings)
    print("all well")


if __name__ == "__main__":
    main()
