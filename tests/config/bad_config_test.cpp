// Bad configs and the exact message for the user: field, value, allowed values, remedy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "lib/config/config.h"
#include "lib/config/fields.h"
#include "lib/config/other_names.h"

#define SECTIONS "run, model, data, parallel, precision, optimizer, lr, checkpoint, fault, metrics, cluster"

namespace tri {
namespace {

struct BadText {
  const char* text;     // YAML, or an override
  std::string message;  // without the closing "N errors"
};

struct Combination {
  const char* yaml;
  int ranks;
  const char* message;
};

const BadText kBadConfigs[] = {
    {"run: {\"ste\\e[2J\": 5}",
     "a.yaml:1: run.ste\xEF\xBF\xBD[2J: unknown key; the keys of run are name, dir, seed, steps, tokens, device, "
     "gemm_search, deterministic, eval_every, eval_batches, sample_every, sample_tokens, sample_prompt, "
     "sample_temperature, sample_top_k"},
    {"data:\n  stages: {sources: [a]}",
     "a.yaml:2: data.stages: is a map, not a list; allowed: list of {until_tokens: 250B, sources: [path, ...], "
     "weights: [number > 0, ...]}; write [{until_tokens: 250B, sources: [FILE, ...], weights: [NUMBER, ...]}]"},
    {"data:\n  stages: [{source: [a]}]",
     "a.yaml:2: data.stages[0].source: unknown key; did you mean sources?\n"
     "a.yaml:2: data.stages[0]: has no sources; write {until_tokens: 250B, sources: [FILE, ...], weights: [NUMBER, "
     "...]}"},
    {"data: {stages: [{sources: [a], weights: [0]}]}",
     "a.yaml:1: data.stages[0].weights[0]: 0 is out of range; allowed: number > 0; the default is 1"},
    {"data: {validation: [{name: a}]}", "a.yaml:1: data.validation[0]: has no path; write {name: NAME, path: FILE}"},
    {"run: {steps: 100, tokens: 1000}\nmodel: {seq_len: 10}\ndata: {global_batch: 4}",
     "a.yaml:1: run.steps: 100, but run.tokens 1000 ends the run after step 25; remove one of the two, or set "
     "run.tokens to 0"},
    {"data: {batch_ramp: \"0:4 1k:6\",\n  global_batch: 8}",
     "a.yaml:2: data.global_batch: 8, but the largest size of data.batch_ramp is 6; remove one of the two"},
    {"data: {batch_ramp: \"768 250B:1536\"}",
     "a.yaml:1: data.batch_ramp: \"768 250B:1536\" is not a ramp; allowed: 0:SAMPLES TOKENS:SAMPLES ..., tokens "
     "ascending; try 0:768 250B:1536"},
    {"parallel: {layers_per_chunk: \"3,0\"}",
     "a.yaml:1: parallel.layers_per_chunk: \"3,0\" is not a list of numbers of layers; allowed: even, auto or "
     "LAYERS,LAYERS,..., each at least 1, as 3xLAYERS for three equal ones; try auto"},
    {"run: {tokens: 1.5}",
     "a.yaml:1: run.tokens: 1.5 is not an integer; allowed: integer >= 0, also such as 250B or 1.5T; try 2"},
    {"run: {tokens: 10b}",
     "a.yaml:1: run.tokens: 10b is not an integer; allowed: integer >= 0, also such as 250B or 1.5T; the default is 0"},
    {"run: {stepz: 5}", "a.yaml:1: run.stepz: unknown key; did you mean run.steps?"},
    {"model:\n  layers: 4\n  heds: 4", "a.yaml:3: model.heds: unknown key; did you mean model.heads?"},
    {"model: {num_layers: 4}", "a.yaml:1: model.num_layers: unknown key; did you mean model.layers?"},
    {"model: {steps: 4}", "a.yaml:1: model.steps: unknown key; did you mean run.steps?"},
    {"metrics: {colour: red}",
     "a.yaml:1: metrics.colour: unknown key; the keys of metrics are log_every, log, log_ranks, "
     "ranks_every, fp8_every, experts_every, tensorboard, prometheus, prometheus_file, timeline"},
    {"modle: {layers: 4}", "a.yaml:1: modle: unknown section; did you mean model?"},
    {"steps: 4", "a.yaml:1: steps: unknown section; did you mean run.steps?"},
    {"run.steps: 4", "a.yaml:1: run.steps: sections and keys are on different lines in a file; write run: {steps: 4}"},
    {"speed: {fast: 5}", "a.yaml:1: speed: unknown section; the sections are " SECTIONS},
    {"speed: {every: 5}", "a.yaml:1: speed: unknown section; here its every is checkpoint.every"},
    // Names that other programs use.
    {"training: {local_batch_size: 2, seq_len: 64, speed: 1}",
     "a.yaml:1: training: unknown section; here its local_batch_size is data.micro_batch, its seq_len is "
     "model.seq_len; unknown: speed"},
    {"training: {steps: 2, speed: {high: 1, low: {x: 1}}, fsdp: {policy: 1}}",
     "a.yaml:1: training: unknown section; here its steps is run.steps, its fsdp is parallel.zero (2 shards gradients "
     "and optimizer states; weights are not sharded over dp); unknown: speed"},
    {"optimizer: {lr: 1e-3}", "a.yaml:1: optimizer.lr: unknown key; did you mean lr.peak?"},
    {"model: {num_attention_heads: 4}",
     "a.yaml:1: model.num_attention_heads: unknown key; did you mean model.heads?"},  // rather than model.attention
    {"parallel: {tensor-model-parallel-size: 4}",
     "a.yaml:1: parallel.tensor-model-parallel-size: unknown key; did you mean parallel.tp?"},
    {"micro_batch_size: 4", "a.yaml:1: micro_batch_size: unknown section; did you mean data.micro_batch?"},
    {"run: {num_epochs: 3}",
     "a.yaml:1: run.num_epochs: unknown key; did you mean run.steps (optimizer steps: epochs x samples / "
     "data.global_batch)?"},
    {"run: {devices: 8}",
     "a.yaml:1: run.devices: unknown key; start the ranks with srun or mpirun -n RANKS, one per GPU"},
    {"optimizer: {params: {lr: 1e-3, betas: [0.9, 0.95]}}",
     "a.yaml:1: optimizer.params: unknown key; here its lr is lr.peak, its betas is optimizer.beta1 (the first value; "
     "the second is optimizer.beta2)"},
    // Keys in a section of another program are explained, whatever the section's name.
    {"lr_scheduler: {warmup_steps: 20, decay_ratio: 0.1}",
     "a.yaml:1: lr_scheduler: unknown section; here its warmup_steps is lr.warmup_steps, its decay_ratio is "
     "lr.wsd_decay_fraction (with lr.rule wsd: the last fraction of the steps, in which the rate decays)"},
    {"optim: {name: adam, lr: 1e-3, sched: {name: CosineAnnealing, min_lr: 1e-5}}",
     "a.yaml:1: optim: unknown section; here its name is optimizer.name, its lr is lr.peak, its sched.name is lr.rule, "
     "its sched.min_lr is lr.min"},
    {"dataset: {batch_size: 4}",
     "a.yaml:1: dataset: unknown section; here its batch_size is data.micro_batch (samples per forward pass; "
     "data.global_batch is samples per step over all ranks)"},
    {"activation_checkpoint: {mode: full}",
     "a.yaml:1: activation_checkpoint: unknown section; here its mode is parallel.recompute"},
    {"activation_checkpoint: full",
     "a.yaml:1: activation_checkpoint: unknown section; did you mean parallel.recompute?"},
    {"parallelism: {tensor_parallel_degree: 2}",
     "a.yaml:1: parallelism: unknown section; here its tensor_parallel_degree is parallel.tp"},
    {"parallelism: {speed: 2}", "a.yaml:1: parallelism: unknown section; did you mean parallel?"},
    {"parallelism: {tp: 2}", "a.yaml:1: parallelism: unknown section; did you mean parallel?"},
    {"model: {flavor: 8B}",
     "a.yaml:1: model.flavor: unknown key; trireme config new --model NAME writes a config with the model of a preset"},
    {"lr_scheduler: {speed: 1}", "a.yaml:1: lr_scheduler: unknown section; did you mean lr.rule?"},
    {"trainer: {devices: 8, num_nodes: 2, max_steps: 5}",
     "a.yaml:1: trainer: unknown section; here its max_steps is run.steps; devices: start the ranks with srun or "
     "mpirun -n RANKS, one per GPU; num_nodes: start ranks on several nodes with srun, or with mpirun and its hosts"},
    {"x-common: &c {lr: 1e-3}\noptim: {<<: *c}", "a.yaml:2: optim: unknown section; here its lr is lr.peak"},
    // `interval` means the interval of its section.
    {"checkpoint: {interval: 5}", "a.yaml:1: checkpoint.interval: unknown key; did you mean checkpoint.every?"},
    {"metrics: {interval: 5}", "a.yaml:1: metrics.interval: unknown key; did you mean metrics.log_every?"},
    {"validation: {interval: 5}", "a.yaml:1: validation: unknown section; here its interval is run.eval_every"},
    {"optimizer: {interval: 5}",
     "a.yaml:1: optimizer.interval: unknown key; the keys of optimizer are name, beta1, beta2, eps, momentum, "
     "adamw_lr, weight_decay, clip, skip_spikes, z_loss, moments, ema"},
    {"interval: 5", "a.yaml:1: interval: unknown section; the sections are " SECTIONS},
    // Sections that are given a scalar value.
    {"lr: 3e-4", "a.yaml:1: lr: is a section; did you mean lr: {peak: 0.0003}?"},
    {"lr: cosine", "a.yaml:1: lr: is a section; did you mean lr: {rule: cosine}?"},
    {"precision: bf16", "a.yaml:1: precision: is a section; did you mean precision: {compute: bf16}?"},
    {"precision: fp8", "a.yaml:1: precision: is a section; did you mean precision: {gemm: fp8}?"},
    {"optimizer: lamb", "a.yaml:1: optimizer: is a section; did you mean optimizer: {name: lamb}?"},
    {"data: corpus", "a.yaml:1: data: is a section; did you mean data: {sources: [\"corpus\"]}?"},
    {"checkpoint: 100", "a.yaml:1: checkpoint: is a section; did you mean checkpoint: {every: 100}?"},
    {"checkpoint: a b", "a.yaml:1: checkpoint: is a section; did you mean checkpoint: {dir: \"a b\"}?"},
    {"model: llama_8b",
     "a.yaml:1: model: is a section; put its keys on lines of their own below it, as key: value; llama_8b is a preset: "
     "trireme config new --model llama_8b --gpus N --output my.yaml writes a config from it"},
    {"run: {steps: 1.5}", "a.yaml:1: run.steps: 1.5 is not an integer; allowed: integer >= 1; try 2"},
    {"run: {steps: \"ten\"}",
     "a.yaml:1: run.steps: \"ten\" is text, not an integer; allowed: integer >= 1; the default is 100"},
    {"run: {steps: \"10\"}",
     "a.yaml:1: run.steps: \"10\" is text, not an integer; allowed: integer >= 1; remove the quotes"},
    {"run: {steps: ten}", "a.yaml:1: run.steps: ten is not an integer; allowed: integer >= 1; the default is 100"},
    {"run: {steps: 1_000}", "a.yaml:1: run.steps: 1_000 is not an integer; allowed: integer >= 1; try 1000"},
    {"run: {steps: 1e3}", "a.yaml:1: run.steps: 1e3 is not an integer; allowed: integer >= 1; try 1000"},
    {"run: {steps: 0x10}", "a.yaml:1: run.steps: 0x10 is not an integer; allowed: integer >= 1; the default is 100"},
    {"run: {steps: 0}", "a.yaml:1: run.steps: 0 is out of range; allowed: integer >= 1; try 1"},
    {"run: {steps: -3}", "a.yaml:1: run.steps: -3 is out of range; allowed: integer >= 1; try 1"},
    {"run: {steps: 99999999999999999999}",
     "a.yaml:1: run.steps: 99999999999999999999 is out of range; allowed: integer >= 1; the largest is "
     "9223372036854775807"},
    {"run: {steps:}", "a.yaml:1: run.steps: has no value; allowed: integer >= 1; the default is 100"},
    {"run: {steps: [1, 2]}",
     "a.yaml:1: run.steps: is a list, not a single value; allowed: integer >= 1; the default is 100"},
    {"run: {steps: {a: 1}}",
     "a.yaml:1: run.steps: is a map, not a single value; allowed: integer >= 1; the default is 100"},
    {"run: {seed: -1}", "a.yaml:1: run.seed: -1 is out of range; allowed: integer >= 0; try 0"},
    {"run: {seed: 18446744073709551616}",
     "a.yaml:1: run.seed: 18446744073709551616 is out of range; allowed: integer >= 0; the largest is "
     "18446744073709551615"},
    {"run: {eval_every: 3000000000}",
     "a.yaml:1: run.eval_every: 3000000000 is out of range; allowed: integer >= 0; the largest is "
     "2147483647"},
    {"run: {name: my run/1}",
     "a.yaml:1: run.name: \"my run/1\" is not a file name; allowed: letters, digits, '.', '_' and '-'; try "
     "my_run_1"},
    {"run: {name: \"..\"}",
     "a.yaml:1: run.name: \"..\" is not a file name; allowed: letters, digits, '.', '_' and '-'; the default "
     "is \"run\""},
    {"run: {name: \"\"}",
     "a.yaml:1: run.name: \"\" is not a file name; allowed: letters, digits, '.', '_' and '-'; the default "
     "is \"run\""},
    {"run: {dir: }", "a.yaml:1: run.dir: has no value; allowed: path; the default is \"\""},
    {"run: {device: gpu}",
     "a.yaml:1: run.device: gpu is not one of the choices; allowed: auto|cpu|cuda; the default is auto"},
    {"run: {device: Cuda}",
     "a.yaml:1: run.device: Cuda is not one of the choices; allowed: auto|cpu|cuda; did you mean cuda?"},
    {"run: {sample_temperature: -0.5}",
     "a.yaml:1: run.sample_temperature: -0.5 is out of range; allowed: number >= 0; try 0"},
    {"run: {sample_temperature: warm}",
     "a.yaml:1: run.sample_temperature: warm is not a number; allowed: number >= 0; the default is 0.8"},
    {"fault: {watchdog: false}",
     "a.yaml:1: fault.watchdog: false is not one of the choices; allowed: off|on; the default is on"},
    {"fault: {step_seconds: -1}", "a.yaml:1: fault.step_seconds: -1 is out of range; allowed: number >= 0; try 0"},
    {"fault: {setup_seconds: 0}",
     "a.yaml:1: fault.setup_seconds: 0 is out of range; allowed: number > 0; the default is 900"},
    {"model: {layers: 0}", "a.yaml:1: model.layers: 0 is out of range; allowed: integer in [1, 100000]; try 1"},
    {"model: {hidden: 2000000}",
     "a.yaml:1: model.hidden: 2000000 is out of range; allowed: integer in [1, 1048576]; try 1048576"},
    {"model: {bias: 2}", "a.yaml:1: model.bias: 2 is not a boolean; allowed: true|false; the default is true"},
    {"model: {bias: yes}", "a.yaml:1: model.bias: yes is not a boolean; allowed: true|false; the default is true"},
    {"model: {bias: \"true\"}",
     "a.yaml:1: model.bias: \"true\" is text, not a boolean; allowed: true|false; remove the quotes"},
    {"model: {norm: batchnorm}",
     "a.yaml:1: model.norm: batchnorm is not one of the choices; allowed: layernorm|rmsnorm; the default is layernorm"},
    {"model: {norm_eps: 0}", "a.yaml:1: model.norm_eps: 0 is out of range; allowed: number > 0; the default is 1e-05"},
    {"model: {rope_theta: .inf}",
     "a.yaml:1: model.rope_theta: .inf is not a number; allowed: number > 0; the default is 10000"},
    {"model: {rope_theta: inf}",
     "a.yaml:1: model.rope_theta: inf is not a number; allowed: number > 0; the default is 10000"},
    {"model: {init_std: \"0.02\"}",
     "a.yaml:1: model.init_std: \"0.02\" is text, not a number; allowed: number > 0; remove the quotes"},
    {"model: {layer_pattern: window}",
     "a.yaml:1: model.layer_pattern: window is not a list; allowed: list of full|window; write [window]"},
    {"model: {layer_pattern: [window, fulll]}",
     "a.yaml:1: model.layer_pattern[1]: fulll is not one of the choices; allowed: full|window; did you mean full?"},
    {"data: {sources: corpus}",
     "a.yaml:1: data.sources: corpus is not a list; allowed: list of paths or {path: text, weight: number > "
     "0}; write [corpus]"},
    {"data: {sources: {path: corpus}}",
     "a.yaml:1: data.sources: is a map, not a list; allowed: list of paths or {path: text, weight: number > "
     "0}; write [{path: FILE, weight: NUMBER}]"},
    {"data:\n  sources:\n    - a\n    - {path: b, wieght: 2}",
     "a.yaml:4: data.sources[1].wieght: unknown key; did you mean weight?"},
    {"data:\n  sources:\n    - {path: b, weight: 0}\n    - {weight: 2}",
     "a.yaml:3: data.sources[0].weight: 0 is out of range; allowed: number > 0; the default is 1\n"
     "a.yaml:4: data.sources[1]: has no path; write {path: FILE, weight: NUMBER}"},
    {"data:\n  sources:\n    -\n    - [c]",
     "a.yaml:2: data.sources[0]: is not a source; write a path or {path: FILE, weight: NUMBER}\n"
     "a.yaml:4: data.sources[1]: is not a source; write a path or {path: FILE, weight: NUMBER}"},
    {"data: {sources: [{path: a, path: b}]}", "a.yaml:1: data.sources[0].path: given twice, first on line 1; keep one"},
    {"data: {sources: [{path: a, size: 2}]}",
     "a.yaml:1: data.sources[0].size: unknown key; the keys of a source are path, weight"},
    {"data: {sources: [{path: ''}]}",
     "a.yaml:1: data.sources[0].path: \"\" is empty; allowed: path, not empty; there is no default"},
    {"data: {tokenizer: \"\"}",
     "a.yaml:1: data.tokenizer: \"\" is empty; allowed: path, not empty; the default is \"bytes\""},
    {"data: {validation_fraction: 0.7}",
     "a.yaml:1: data.validation_fraction: 0.7 is out of range; allowed: number in [0, 0.5]; try 0.5"},
    {"data: {prefetch: 0}", "a.yaml:1: data.prefetch: 0 is out of range; allowed: integer >= 1; try 1"},
    {"parallel: {zero: 3}", "a.yaml:1: parallel.zero: 3 is out of range; allowed: integer in [0, 2]; try 2"},
    {"parallel: {schedule: 1b1f}", "a.yaml:1: parallel.schedule: 1b1f is not one of the choices; allowed: " +
                                       enum_choices<Schedule>() + "; the default is 1f1b"},
    {"parallel: {recompute: all}",
     "a.yaml:1: parallel.recompute: all is not one of the choices; allowed: none|norms|selective|full|auto; the "
     "default is none"},
    {"parallel: {bucket_elements: 1000}",
     "a.yaml:1: parallel.bucket_elements: 1000 is out of range; allowed: integer >= 1024; try 1024"},
    {"parallel: {overlap_tp: off}",
     "a.yaml:1: parallel.overlap_tp: off is not a boolean; allowed: true|false; the default is true"},
    {"precision: {compute: fp16}",
     "a.yaml:1: precision.compute: fp16 is not one of the choices; allowed: fp32|bf16; the default is fp32"},
    {"precision: {compute: int32}",
     "a.yaml:1: precision.compute: int32 is not one of the choices; allowed: fp32|bf16; the default is fp32"},
    {"precision: {gemm: int8}",
     "a.yaml:1: precision.gemm: int8 is not one of the choices; allowed: compute|fp8; the default is compute"},
    {"precision: {fp8_gradients: bf16}",
     "a.yaml:1: precision.fp8_gradients: bf16 is not one of the choices; allowed: e5m2|e4m3; the default is e5m2"},
    {"optimizer: {name: adam}", "a.yaml:1: optimizer.name: adam is not one of the choices; allowed: " +
                                    enum_choices<OptimizerKind>() + "; did you mean adamw?"},
    {"optimizer: {beta1: 1}",
     "a.yaml:1: optimizer.beta1: 1 is out of range; allowed: number in [0, 1); the default is 0.9"},
    {"optimizer: {momentum: 1}",
     "a.yaml:1: optimizer.momentum: 1 is out of range; allowed: number in [0, 1); the default is 0.95"},
    {"optimizer: {clip: -1}", "a.yaml:1: optimizer.clip: -1 is out of range; allowed: number >= 0; try 0"},
    {"lr: {rule: cosin}",
     "a.yaml:1: lr.rule: cosin is not one of the choices; allowed: constant|linear|cosine|wsd; did you mean "
     "cosine?"},
    {"lr: {wsd_decay_fraction: 0}",
     "a.yaml:1: lr.wsd_decay_fraction: 0 is out of range; allowed: number in (0, 1]; the default is 0.2"},
    {"lr: {wsd_decay_fraction: 1.5}",
     "a.yaml:1: lr.wsd_decay_fraction: 1.5 is out of range; allowed: number in (0, 1]; try 1"},
    {"lr: {peak: 1e999}", "a.yaml:1: lr.peak: 1e999 is out of range; allowed: number > 0; the default is 0.0003"},
    {"lr: {decay_steps: 10000 steps}",
     "a.yaml:1: lr.decay_steps: 10000 steps is not an integer; allowed: integer >= 0; the default is 0"},
    {"metrics: {log_every: 0}", "a.yaml:1: metrics.log_every: 0 is out of range; allowed: integer >= 1; try 1"},
    {"metrics: {prometheus: 9400}",
     "a.yaml:1: metrics.prometheus: \"9400\" is not an address; allowed: HOST:PORT or "
     "[ADDRESS]:PORT; try 127.0.0.1:9400"},
    {"metrics: {timeline: \"5:4\"}",
     "a.yaml:1: metrics.timeline: \"5:4\" is not a range of steps; allowed: FIRST:LAST, "
     "1 <= FIRST <= LAST; try 20:22"},
    {"cluster: {ranks_per_node: eight}",
     "a.yaml:1: cluster.ranks_per_node: eight is not an integer; allowed: integer >= 1; the default is 8"},
    {"model:\n  layers: 4\n  heads: 4\n  layers: 8", "a.yaml:4: model.layers: given twice, first on line 2; keep one"},
    {"run: {name: a}\nmodel: {layers: 4}\nrun: {steps: 5}", "a.yaml:3: run: given twice, first on line 1; keep one"},
    {"run: 5", "a.yaml:1: run: is a section; did you mean run: {steps: 5}?"},
    {"model: 5", "a.yaml:1: model: is a section; put its keys on lines of their own below it, as key: value"},
    {"lr: [1, 2]", "a.yaml:1: lr: is a section; put its keys on lines of their own below it, as key: value"},
    {"[run, model]", "a.yaml:1: expected sections, such as \"run:\"; the sections are " SECTIONS},
    {"hello", "a.yaml:1: expected sections, such as \"run:\"; the sections are " SECTIONS},
    {"run:\n\tsteps: 5",
     "a.yaml:2: a tab indents this line, but YAML allows only spaces; replace each tab with two spaces"},
    {"run: {steps: 5",
     "a.yaml:1: not valid YAML: end of map flow not found; correct the brackets, quotes or indentation"},
    {"run: {steps: 5}\n---\nrun: {steps: 6}", "a.yaml: 2 YAML documents in one file; keep one"},
    {"? [a, b]\n: 5", "a.yaml:1: a key must be a single word"},
    {"run: {[a]: 5}", "a.yaml:1: a key must be a single word"},
    {"run:\n  sample_prompt: |\n    a\n    b\n  seed: |\n    a\n    b\n",
     "a.yaml:5: run.seed: \"a\\nb\\n\" is text, not an integer; allowed: integer >= 0; the default is 1234"},
    {"run: {steps: 9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x}",
     "a.yaml:1: run.steps: 9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x... is not an integer; allowed: integer "
     ">= 1; the default is 100"},
    {"data: {sources: [{path: a, weight: heavy}]}",
     "a.yaml:1: data.sources[0].weight: heavy is not a number; allowed: number > 0; the default is 1"},
    {"data: {sources: ~}",
     "a.yaml:1: data.sources: has no value; allowed: list of paths or {path: text, weight: number > 0}; "
     "write [] for none"},
};

const BadText kBadOverrides[] = {
    {"run.steps", "--set run.steps: expected section.key=value, such as run.steps=100"},
    {"steps=5", "--set steps=5: steps: unknown section; did you mean run.steps?"},
    {"run=5", "--set run=5: run is a section; did you mean run.steps=5?"},
    {"checkpoint=/some/where",
     "--set checkpoint=/some/where: checkpoint is a section; did you mean checkpoint.dir=/some/where?"},
    {"model=5", "--set model=5: expected section.key=value, such as run.steps=100"},
    {"model.heds=4", "--set model.heds=4: model.heds: unknown key; did you mean model.heads?"},
    {"modle.heads=4", "--set modle.heads=4: modle: unknown section; did you mean model?"},
    {"training.lr=1", "--set training.lr=1: training: unknown section; did you mean lr.peak?"},
    {"optim.sched.min_lr=1", "--set optim.sched.min_lr=1: optim: unknown section; did you mean lr.min?"},
    {"speed.fast=1", "--set speed.fast=1: speed: unknown section; the sections are " SECTIONS},
    {"--num-layers=4", "--set --num-layers=4: --num-layers: unknown section; did you mean model.layers?"},
    {"model.layers=x",
     "--set model.layers=x: model.layers: x is not an integer; allowed: integer in [1, 100000]; the default "
     "is 12"},
    {"model.layers=",
     "--set model.layers=: model.layers: has no value; allowed: integer in [1, 100000]; the default is 12"},
    {"=5", "--set =5: expected section.key=value, such as run.steps=100"},
    {"data.sources=[a", "--set data.sources=[a: data.sources: not valid YAML: end of sequence flow not found"},
    {"data.sources=corpus",
     "--set data.sources=corpus: data.sources: corpus is not a list; allowed: list of paths or {path: text, "
     "weight: number > 0}; write [corpus]"},
    {"run.name=a b",
     "--set run.name=a b: run.name: \"a b\" is not a file name; allowed: letters, digits, '.', '_' and '-'; "
     "try a_b"},
};

// Every field is valid alone; the combination is not.
const Combination kBadCombinations[] = {
    {"checkpoint: {accept_changes: \"model.window,model.rope_teta\"}", 1,
     "checkpoint.accept_changes: model.rope_teta is not a field; did you mean model.rope_theta?"},
    {"checkpoint: {accept_changes: seed}", 1,
     "checkpoint.accept_changes: seed is not a field; did you mean data.seed?"},
    {"checkpoint: {accept_changes: True}", 1, "checkpoint.accept_changes: True is not a field; did you mean true?"},
    {"checkpoint: {accept_changes: whatever}", 1,
     "checkpoint.accept_changes: whatever is not a field; name fields, such as model.window, or set true"},
    {"data: {sources: [{path: a, weight: 1e308}, {path: b, weight: 1e308}]}", 1,
     "data.sources: the sum of the weights is too large; divide each by the same number"},
    {"data: {stages: [{sources: [a, b], weights: [1e308, 1e308]}]}", 1,
     "data.stages[0].weights: the sum of the weights is too large; divide each by the same number"},
    {"parallel: {tp: 2, pp: 3}", 8,
     "parallel: tp 2 x pp 3 = 6 does not divide 8 ranks; start 6 or 12 ranks, or set parallel.pp to 1, 2 or "
     "4"},
    {"parallel: {tp: 2, pp: 2, dp: 3}", 8,
     "parallel: tp 2 x pp 2 x dp 3 = 12, not 8 ranks; start 12 ranks, or set parallel.dp to 2"},
    {"parallel: {tp: 2, pp: 3, dp: 3}", 8,
     "parallel: tp 2 x pp 3 x dp 3 = 18, not 8 ranks; start 18 ranks, or set parallel.dp to 0 and "
     "parallel.pp to 1, 2 or 4"},
    {"parallel: {tp: 5}", 4,
     "parallel.tp: 5 does not divide model.heads 12; set parallel.tp to 1, 2 or 4\n"
     "parallel.tp: 5 does not divide model.ffn_hidden 3072; set parallel.tp to 1, 2 or 4\n"
     "parallel.tp: 5 does not divide the padded vocabulary 50304 (model.vocab 50257 up to a multiple of "
     "128); set parallel.tp to 1, 2 or 4\n"
     "parallel.tp: 5 does not divide the 1024 rows of a microbatch (data.micro_batch 1 x model.seq_len "
     "1024); set parallel.tp to 1, 2 or 4"},
    {"model: {hidden: 770}", 1,
     "model.heads: 12 does not divide model.hidden 770; set model.hidden to 768 or 780, or set model.heads "
     "to 5, 7, 10, 11 or 14, or set model.head_dim"},
    {"model: {kv_heads: 5}", 1,
     "model.kv_heads: 5 does not divide model.heads 12; set model.kv_heads to 1, 2, 3, 4 or 6"},
    {"model: {kv_heads: 24}", 1,
     "model.kv_heads: 24 exceeds model.heads 12; set model.kv_heads to 2, 3, 4, 6 or 12, or to 0 to use model.heads"},
    {"model: {hidden: 36, position: rope}", 1,
     "model.position: rope rotates pairs, but model.head_dim 3 is odd; set model.head_dim to 2 or 4, or "
     "model.position to learned"},
    {"model: {rope_factor: 8}", 1,
     "model.rope_factor: 8 has no effect, since model.rope_scaling is none; set model.rope_scaling, or "
     "model.rope_factor to 1"},
    {"model: {position: rope, rope_scaling: llama3, rope_factor: 8, rope_attention_factor: 2}", 1,
     "model.rope_attention_factor: 2 has no effect, since model.rope_scaling is llama3; set model.rope_scaling to "
     "yarn, or model.rope_attention_factor to 0"},
    {"model: {rope_fraction: 0.25}", 1,
     "model.rope_fraction: 0.25 requires rope, but model.position is learned; set model.position to rope, or "
     "model.rope_fraction to 1"},
    {"model: {position: rope, rope_fraction: 0.3}", 1,
     "model.rope_fraction: 0.3 of model.head_dim 64 is 19 elements, but rope rotates pairs; set model.rope_fraction to "
     "1 or 0.3125"},
    {"model: {rope_scaling: linear, rope_factor: 2}", 1,
     "model.rope_scaling: linear requires rope, but model.position is learned; set model.position to rope, or "
     "model.rope_scaling to none"},
    {"model: {position: rope, rope_scaling: llama3, rope_factor: 8, rope_low_freq_factor: 4}", 1,
     "model.rope_low_freq_factor: 4 is not below model.rope_high_freq_factor 4; set them to 1 and 4"},
    {"model: {position: rope, rope_scaling: yarn, rope_factor: 4, rope_beta_slow: 32}", 1,
     "model.rope_beta_slow: 32 is not below model.rope_beta_fast 32; set them to 1 and 32"},
    {"model: {position: rope, rope_scaling: yarn, rope_factor: 4, rope_theta: 1}", 1,
     "model.rope_theta: 1 must exceed 1 for model.rope_scaling yarn; set model.rope_theta to 10000"},
    {"model: {parallel_norms: 2}", 1,
     "model.parallel_norms: 2 has no effect, since model.block is sequential; set model.block to parallel, or "
     "model.parallel_norms to 1"},
    {"model: {norm_position: post, block: parallel}", 1,
     "model.norm_position: post requires a sequential block, but model.block is parallel, which adds both branches at "
     "once; set model.block to sequential, or model.norm_position to pre"},
    {"model: {experts: 4, experts_per_token: 5, bias: false}", 1,
     "model.experts_per_token: 5 exceeds model.experts 4; set it to 4 or less"},
    {"model: {experts: 4, dense_layers: 12}", 1,
     "model.dense_layers: 12 leaves no layer of model.layers 12 with experts; lower it, or set model.experts to 0\n"
     "model.bias: true is not supported with model.experts 4; set model.bias to false"},
    {"model: {experts: 6, router_groups: 2, router_bias_rate: 0.1, bias: false}", 1,
     "model.router_groups: 2 (model.router_top_groups 1) requires a sigmoid router; set model.router to sigmoid, or "
     "both to 1\n"
     "model.router_bias_rate: 0.1 requires a sigmoid router; set model.router to sigmoid, or model.router_bias_rate to "
     "0"},
    {"model: {experts: 6, router: sigmoid, router_groups: 4, bias: false}", 1,
     "model.router_groups: 4 does not divide model.experts 6; set it to 1, 2, 3 or 6"},
    {"model: {experts: 4, expert_hidden: 24, bias: false}\nprecision: {gemm: fp8, compute: bf16}", 1,
     "precision.gemm: fp8 needs multiples of 16, but model.expert_hidden is 24; set precision.gemm to compute, or "
     "change the sizes"},
    {"model: {aux_loss: 0.1}", 1,
     "model.aux_loss: 0.1 has no effect without experts; set model.experts, or model.aux_loss to 0"},
    {"model: {expert_hidden: 64, router: sigmoid}", 1,
     "model.expert_hidden: 64 has no effect without experts; set model.experts, or model.expert_hidden to 0\n"
     "model.router: sigmoid has no effect without experts; set model.experts, or model.router to softmax"},
    {"parallel: {ep: 2}", 2, "parallel.ep: 2 has no effect without experts; set model.experts, or parallel.ep to 1"},
    {"model: {experts: 6, bias: false}\nparallel: {ep: 4}", 4,
     "parallel.ep: 4 does not divide model.experts 6; set parallel.ep to 1 or 2"},
    {"model: {experts: 6, bias: false}\nparallel: {ep: 3}", 4,
     "parallel.ep: 3 does not divide the 4 ranks of a stage (tp 1 x dp 4); set parallel.ep to 1 or 2"},
    {"model: {qk_norm: head}", 1,
     "model.qk_norm: head requires rope, but model.position is learned; set model.position to rope, or model.qk_norm "
     "to none"},
    {"model: {qk_norm: full}", 1,
     "model.qk_norm: full requires rope, but model.position is learned; set model.position to rope, or model.qk_norm "
     "to none"},
    {"model: {position: rope, qk_norm: full, norm_offset: 1}", 1,
     "model.norm_offset: 1 is not supported with model.qk_norm full; set model.norm_offset to 0"},
    {"model: {layer_pattern: [window, full]}", 1,
     "model.layer_pattern: has layers with a window, but model.window is 0; set model.window, or model.layer_pattern "
     "to []"},
    {"model: {layer_pattern: [full], window: 64}", 1,
     "model.window: 64 has no effect, since model.layer_pattern has no layer with a window; set model.window to 0, or "
     "model.layer_pattern to []"},
    {"model: {position: rope, window: 64, rope_theta_local: 1e4}", 1,
     "model.rope_theta_local: 10000 has no effect without a model.layer_pattern that has layers with a window; set "
     "model.rope_theta_local to 0, or model.layer_pattern, for instance to [window, full]"},
    {"model: {layer_pattern: [window], window: 64, rope_theta_local: 1e4}", 1,
     "model.rope_theta_local: 10000 has no effect without rope; set model.rope_theta_local to 0, or model.position to "
     "rope"},
    {"model: {window: 4096}", 1,
     "model.window: 4096 exceeds model.seq_len 1024; set model.window to 0 for full attention, or to 1024 or "
     "less"},
    {"model: {heads: 16, hidden: 1024}\nparallel: {tp: 3}", 3,
     "parallel.tp: 3 does not divide model.heads 16; set parallel.tp to 1\n"
     "parallel.tp: 3 does not divide model.ffn_hidden 4096; set parallel.tp to 1\n"
     "parallel.tp: 3 does not divide the 1024 rows of a microbatch (data.micro_batch 1 x model.seq_len "
     "1024); set parallel.tp to 1"},
    {"model: {kv_heads: 4}\nparallel: {tp: 6}", 6,
     "parallel.tp: 6 does not divide model.kv_heads 4; set parallel.tp to 1 or 2\n"
     "parallel.tp: 6 does not divide the 1024 rows of a microbatch (data.micro_batch 1 x model.seq_len "
     "1024); set parallel.tp to 1 or 2"},
    {"parallel: {cp: 3}", 3,
     "parallel.cp: 2 x 3 does not divide model.seq_len 1024; set model.seq_len to 1020 or 1026, or set "
     "parallel.cp to 1, 2, 4, 8 or 16"},
    {"model: {seq_len: 1021}\nparallel: {cp: 2}", 2,
     "parallel.cp: 2 x 2 does not divide model.seq_len 1021; set model.seq_len to 1020 or 1024, or set "
     "parallel.cp to 1"},
    {"model: {seq_len: 16}\nparallel: {tp: 3, cp: 4}", 12,
     "parallel.tp: 3 does not divide the 4 rows of a microbatch (data.micro_batch 1 x model.seq_len 16 / parallel.cp "
     "4); set parallel.tp to 1"},
    {"parallel: {cp: 4, pp: 3}", 8,
     "parallel: tp 1 x cp 4 x pp 3 = 12 does not divide 8 ranks; start 12 ranks, or set parallel.pp to 1 or 2"},
    {"model: {ffn_hidden: 1001}\nparallel: {tp: 2}", 2,
     "parallel.tp: 2 does not divide model.ffn_hidden 1001; set parallel.tp to 1"},
    {"model: {vocab: 1000}\nparallel: {tp: 3}", 3,
     "parallel.tp: 3 does not divide the padded vocabulary 1024 (model.vocab 1000 up to a multiple of 128); "
     "set parallel.tp to 1\n"
     "parallel.tp: 3 does not divide the 1024 rows of a microbatch (data.micro_batch 1 x model.seq_len "
     "1024); set parallel.tp to 1"},
    {"model: {heads: 16, vocab: 100}\nparallel: {tp: 16}", 16,
     "parallel.tp: 16 exceeds cluster.ranks_per_node 8, but a tp group must fit in a node; set parallel.tp "
     "to 1, 2, 4 or 8"},
    {"model: {layers: 12}\nparallel: {pp: 5}", 5,
     "model.layers: 12 is not a multiple of parallel.pp 5 x parallel.chunks 1 = 5; set parallel.layers_per_chunk to "
     "auto, or model.layers to 10 or 15, or set parallel.pp to 1"},
    {"model: {layers: 2}\nparallel: {pp: 4}", 4,
     "model.layers: 2 is not a multiple of parallel.pp 4 x parallel.chunks 1 = 4; set model.layers to 4, or set "
     "parallel.pp to 1 or 2"},
    {"model: {layers: 12}\nparallel: {pp: 4, chunks: 2, schedule: interleaved}", 4,
     "model.layers: 12 is not a multiple of parallel.pp 4 x parallel.chunks 2 = 8; set parallel.layers_per_chunk to "
     "auto, or model.layers to 8 or 16, or set parallel.pp to 2, or set parallel.chunks to 1 or 3"},
    {"model: {layers: 12}\nparallel: {pp: 4, layers_per_chunk: \"2x4,3\"}", 4,
     "parallel.layers_per_chunk: 2x4,3 has 3 numbers with the sum 11, but parallel.pp 4 x parallel.chunks 1 is 4 and "
     "model.layers is 12; correct the list, or set it to auto"},
    {"model: {layers: 2}\nparallel: {pp: 4, layers_per_chunk: auto}", 4,
     "parallel.layers_per_chunk: auto of model.layers 2 for parallel.pp 4 x parallel.chunks 1 = 4 virtual stages; "
     "lower parallel.pp or parallel.chunks"},
    {"parallel: {pp: 2, chunks: 2}", 2,
     "parallel.chunks: 2 needs parallel.schedule interleaved, got 1f1b; set parallel.chunks to 1, or "
     "parallel.schedule to interleaved"},
    {"parallel: {schedule: auto, chunks: 2}", 1,
     "parallel.chunks: 2 needs parallel.pp >= 2, got 1; set parallel.chunks to 1"},
    {"parallel: {pp: 2, schedule: zb_v}", 2,
     "parallel.schedule: zb_v needs parallel.chunks 2, got 1; set parallel.chunks to 2, or parallel.schedule to zb_h1"},
    {"parallel: {pp: 2, chunks: 3, schedule: zb_v}", 2,
     "parallel.schedule: zb_v needs parallel.chunks 2, got 3; set parallel.chunks to 2, or parallel.schedule to "
     "interleaved"},
    {"parallel: {schedule: zb_v, chunks: 2}", 1,
     "parallel.schedule: zb_v needs parallel.pp >= 2, got 1; set parallel.schedule to 1f1b"},
    {"parallel: {schedule: interleaved}", 4,
     "parallel.schedule: interleaved needs parallel.pp >= 2, got 1; set parallel.schedule to 1f1b, or set "
     "parallel.pp to 2 or 4"},
    {"parallel: {schedule: interleaved, chunks: 2}", 1,
     "parallel.schedule: interleaved needs parallel.pp >= 2, got 1; set parallel.schedule to 1f1b"},
    {"data: {global_batch: 30, micro_batch: 4}", 2,
     "data.global_batch: 30 is not a multiple of data.micro_batch 4 x dp 2 = 8; set data.global_batch to 24 or "
     "32, or set data.micro_batch to 1, 3, 5 or 15"},
    {"data: {global_batch: 3, micro_batch: 4}", 2,
     "data.global_batch: 3 is not a multiple of data.micro_batch 4 x dp 2 = 8; set data.global_batch to 8"},
    {"data: {global_batch: 9, micro_batch: 1}", 2,
     "data.global_batch: 9 is not a multiple of data.micro_batch 1 x dp 2 = 2; set data.global_batch to 8 or "
     "10"},
    {"data: {batch_ramp: \"0:4 1k:6 2k:8\", micro_batch: 2}", 2,
     "data.batch_ramp: size 6, from token 1000 on, is not a multiple of data.micro_batch 2 x dp 2 = 4; set it to 4 or "
     "8"},
    {"data: {batch_ramp: \"0:4 1k:6\", global_batch: 4}", 1,
     "data.global_batch: 4, but the largest size of data.batch_ramp is 6; remove one of the two"},
    {"run: {tokens: 1000, steps: 30}\nmodel: {seq_len: 10}\ndata: {global_batch: 4}", 1,
     "run.steps: 30, but run.tokens 1000 ends the run after step 25; remove one of the two, or set run.tokens to 0"},
    {"data: {validation: [{name: a, path: x}, {name: a, path: y}]}", 1,
     "data.validation[1].name: a is the name of another file; give each its own"},
    {"data: {reset_positions: true}", 1,
     "data.reset_positions: true, but without data.document_mask a token attends to other documents, some of whose "
     "positions would be later than its own; set data.document_mask: true or data.reset_positions: auto"},
    {"data: {sources: [a], stages: [{sources: [b]}]}", 1,
     "data.sources: the sources of a run with data.stages are those of its stages; set data.sources to []"},
    {"data: {stages: [{sources: [a]}, {sources: [b]}]}", 1,
     "data.stages[0].until_tokens: is missing, but another stage follows; set it to the trained tokens after which "
     "this one ends"},
    {"data: {stages: [{until_tokens: 2k, sources: [a]}, {until_tokens: 1k, sources: [b]}, {sources: [a]}]}", 1,
     "data.stages[1].until_tokens: 1000 does not exceed the 2000 tokens before this stage; stages follow each other"},
    {"data: {stages: [{until_tokens: 31, sources: [a]}, {until_tokens: 39, sources: [b]}, {sources: [a]}]}\n"
     "model: {seq_len: 10}",
     1,
     "data.stages[1].until_tokens: 39 leaves no sample of model.seq_len 10 for this stage, which begins at 31 tokens; "
     "raise it, or remove the stage"},
    {"data: {stages: [{until_tokens: 1k, sources: [a, b], weights: [1]}, {sources: [b]}]}", 1,
     "data.stages[0].weights: 1 weights for 2 sources; give one for each, or none"},
    {"data: {stages: [{until_tokens: 1k, sources: [a]}]}\nrun: {tokens: 2k}", 1,
     "data.stages[0].until_tokens: the last stage ends at 1000 tokens, but the run trains 2000; set it to 2000 or "
     "more, or omit it"},
    {"lr: {by: tokens, warmup_steps: 2}", 1,
     "lr.warmup_steps: 2, but lr.by is tokens; set lr.warmup_tokens instead, or lr.by to steps"},
    {"lr: {decay_tokens: 2}", 1,
     "lr.decay_tokens: 2, but lr.by is steps; set lr.decay_steps instead, or lr.by to tokens"},
    {"lr: {by: tokens, warmup_tokens: 9k, decay_tokens: 8k}", 1,
     "lr.warmup_tokens: 9000 exceeds lr.decay_tokens 8000 (0 = the tokens of the run); set lr.warmup_tokens to 8000 or "
     "less, or lr.decay_tokens to 9000 or more"},
    {"lr: {warmup_steps: 20}\nrun: {steps: 5}", 1,
     "lr.warmup_steps: 20 exceeds lr.decay_steps 5 (0 = run.steps); set lr.warmup_steps to 5 or less; or, for a short "
     "trial of a longer schedule, lr.decay_steps to that schedule's steps, 20 or more"},
    {"optimizer: {adamw_lr: 1e-3}", 1,
     "optimizer.adamw_lr: 0.001 is used with optimizer.name: muon only, but that is adamw; set lr.peak instead"},
    {"lr: {min: 1e-3}", 1, "lr.min: 0.001 exceeds lr.peak 0.0003; set lr.min to 0.0003 or less"},
    {"parallel: {tp: 2}", 3, "parallel: tp 2 x pp 1 = 2 does not divide 3 ranks; start 2 or 4 ranks"},
    {"model: {layers: 12}\nparallel: {pp: 5, dp: 2}", 10,
     "model.layers: 12 is not a multiple of parallel.pp 5 x parallel.chunks 1 = 5; set parallel.layers_per_chunk to "
     "auto, or model.layers to 10 or 15"},
    {"model: {heads: 16}\nparallel: {tp: 16, pp: 2, dp: 1}\ncluster: {ranks_per_node: 4}", 32,
     "parallel.tp: 16 exceeds cluster.ranks_per_node 4, but a tp group must fit in a node; set parallel.tp "
     "to 1, 2 or 4"},
    {"lr: {warmup_steps: 20, decay_steps: 10}", 1,
     "lr.warmup_steps: 20 exceeds lr.decay_steps 10 (0 = run.steps); set lr.warmup_steps to 10 or less; or, for a "
     "short trial of a longer schedule, lr.decay_steps to that schedule's steps, 20 or more"},
    {"model: {hidden: 770, window: 4096, kv_heads: 5}\nparallel: {tp: 5, pp: 3}\nlr: {min: 1}", 8,
     "model.heads: 12 does not divide model.hidden 770; set model.hidden to 768 or 780, or set model.heads "
     "to 5, 7, 10, 11 or 14, or set model.head_dim\n"
     "model.kv_heads: 5 does not divide model.heads 12; set model.kv_heads to 1, 2, 3, 4 or 6\n"
     "model.window: 4096 exceeds model.seq_len 1024; set model.window to 0 for full attention, or to 1024 or "
     "less\n"
     "parallel.tp: 5 does not divide model.heads 12; set parallel.tp to 1\n"
     "parallel.tp: 5 does not divide the padded vocabulary 50304 (model.vocab 50257 up to a multiple of "
     "128); set parallel.tp to 1\n"
     "parallel.tp: 5 does not divide the 1024 rows of a microbatch (data.micro_batch 1 x model.seq_len "
     "1024); set parallel.tp to 1\n"
     "parallel: tp 5 x pp 3 = 15 does not divide 8 ranks; start 15 ranks\n"
     "lr.min: 1 exceeds lr.peak 0.0003; set lr.min to 0.0003 or less"},
};

std::string with_count(const std::string& message) {
  const long lines = std::count(message.begin(), message.end(), '\n') + 1;
  return message + "\n" + std::to_string(lines) + (lines == 1 ? " error" : " errors");
}

TEST(BadConfig, is_refused_with_the_exact_message) {
  for (const auto& [yaml, message] : kBadConfigs) {
    const Result<Config> config = parse_config(yaml, "a.yaml", {});
    ASSERT_FALSE(config.ok()) << yaml;
    EXPECT_EQ(config.error().message, with_count(message)) << yaml;
    EXPECT_EQ(config.error().code, ExitCode::kUsage) << yaml;
  }
}

TEST(BadConfig, names_of_other_programs_lead_to_fields_that_there_are) {
  std::set<std::string> names, keys;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields) keys.insert(field.key);
  for (const OtherName& other : other_names()) {
    EXPECT_TRUE(names.insert(std::string(other.name)).second) << other.name << " is listed twice";
    EXPECT_FALSE(keys.contains(std::string(other.name))) << other.name << " is a key here";
    EXPECT_EQ(find_field(other.name), nullptr) << other.name << " is a field here";
    const Counterpart here = counterpart_of(other.name);
    EXPECT_EQ(here.remark, other.remark);
    if (find_field(other.field)) {
      EXPECT_EQ(here.fields, std::vector{std::string(other.field)}) << other.name;
      continue;
    }
    EXPECT_TRUE(other.field.empty() || other.field == "--ranks") << other.name << ": " << other.field;
    EXPECT_FALSE(other.remark.empty()) << other.name << " has no remark";
    EXPECT_EQ(here.option, other.field) << other.name;
  }
}

TEST(BadConfig, toml_is_no_yaml) {
  const Result<Config> config = parse_config("[training]\nsteps = 5\n", "llama.toml", {});
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(
      config.error().message,
      with_count("llama.toml: TOML is not supported; write YAML: a section such as \"run:\", and its keys below it, as "
                 "key: value"));
}

TEST(BadConfig, text_that_is_not_utf8_is_refused_with_its_line) {
  const auto message_of = [](const std::string& yaml, const std::vector<std::string>& overrides) {
    const Result<Config> config = parse_config(yaml, "a.yaml", overrides);
    EXPECT_FALSE(config.ok()) << yaml;
    if (config.ok()) return std::string();
    EXPECT_EQ(config.error().code, ExitCode::kUsage);
    return config.error().message;
  };
  const std::string in_file =
      with_count("a.yaml:3: not UTF-8 text; save the file as UTF-8, such as with iconv -f latin1 -t utf-8");
  EXPECT_EQ(message_of("run:\n  steps: 4\n  sample_prompt: caf\xe9\n  dir: x\n", {}), in_file);
  EXPECT_EQ(message_of("run:\n  steps: 4\n  # caf\xe9\n", {}), in_file);
  EXPECT_EQ(message_of("run:\n  steps: 4\n  caf\xc3: 4", {}), in_file);
  EXPECT_EQ(message_of("", {"run.dir=caf\xe9"}),
            with_count("--set run.dir=caf\xEF\xBF\xBD: not UTF-8 text; set the terminal's locale to UTF-8"));
  ASSERT_EQ(::setenv("TRIREME_TEST_LATIN1", "caf\xe9", 1), 0);
  for (const char* field : {"run.dir", "checkpoint.dir", "run.name", "data.tokenizer"})
    EXPECT_NE(message_of("", {std::string(field) + "=x${TRIREME_TEST_LATIN1}"}).find("is not UTF-8 text"),
              std::string::npos)
        << field;
  EXPECT_NE(message_of("data: {sources: [x, '${TRIREME_TEST_LATIN1}']}", {}).find("data.sources[1]"),
            std::string::npos);
  ::unsetenv("TRIREME_TEST_LATIN1");
  EXPECT_TRUE(parse_config("run: {sample_prompt: caf\u00e9}", "a.yaml", {"run.dir=\u65e5"}).ok());
}

// The time is proportional to the file's size: if it grew with the product of lengths, this test would take hours.
TEST(BadConfig, large_files_are_answered) {
  std::string wide = "model: {", sources = "data: {sources: [";
  for (int i = 0; i < 20000; ++i) wide += fmt::format("k{}: 1, ", i);
  for (int i = 0; i < 100000; ++i) sources += "k, ";
  const Result<Config> many = parse_config(wide + "}", "a.yaml", {});
  ASSERT_FALSE(many.ok());
  EXPECT_LT(many.error().message.size(), size_t{100000});
  EXPECT_NE(many.error().message.find("20000 errors, of which the first 100 are shown"), std::string::npos);
  const std::string key(2000000, 'a');
  EXPECT_FALSE(parse_config("model: {" + key + ": 1}", "a.yaml", {}).ok());
  EXPECT_FALSE(parse_config(key + ": 1", "a.yaml", {}).ok());
  const Result<Config> listed = parse_config(sources + "]}", "a.yaml", {});
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed.value().data.sources.size(), size_t{100000});
}

TEST(BadConfig, names_are_known_by_section_and_without) {
  const auto meant = [](const char* name) { return to_string(counterpart_of(name)); };
  EXPECT_EQ(meant("lr_scheduler.Warmup-Ratio"), "lr.warmup_steps (steps: run.steps x the ratio)");
  EXPECT_EQ(meant("--model.optim.sched.name"), "lr.rule");
  EXPECT_EQ(meant("--global-batch"), "data.global_batch");
  EXPECT_EQ(meant("training.steps"), "run.steps");
  EXPECT_EQ(meant("--run.steps"), "run.steps");
  EXPECT_EQ(meant("--seed"), "run.seed or data.seed");
  for (const char* name : {"", "--", ".", "..", "a.", ".lr.", "interval", "run.interval"})
    EXPECT_FALSE(counterpart_of(name).known()) << name;
}

TEST(BadOverride, is_refused_with_the_exact_message) {
  for (const auto& [text, message] : kBadOverrides) {
    const Result<Config> config = parse_config("", "a.yaml", {text});
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().message, with_count(message)) << text;
    EXPECT_EQ(config.error().code, ExitCode::kUsage) << text;
  }
  const Result<Config> two = parse_config("", "a.yaml", {"run.steps=5\n---\n6"});
  ASSERT_FALSE(two.ok());
  EXPECT_NE(two.error().message.find("run.steps: more than one YAML document; give one value"), std::string::npos);
}

TEST(BadCombination, is_refused_with_numbers_and_values_that_fit) {
  for (const auto& [yaml, ranks, message] : kBadCombinations) {
    const Result<Config> parsed = parse_config(yaml, "a.yaml", {});
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const Result<Config> resolved = resolve_config(parsed.value(), ranks);
    ASSERT_FALSE(resolved.ok()) << yaml;
    EXPECT_EQ(resolved.error().message, with_count(message)) << yaml;
    EXPECT_EQ(resolved.error().code, ExitCode::kUsage) << yaml;
  }
}

TEST(BadConfig, folders_whose_files_cannot_be_created_are_refused) {
  const auto resolved = [](const std::string& override) {
    return resolve_config(value_or_throw(parse_config("", "a.yaml", {override})), 1);
  };
  const std::string name(255, 'n'), many = "/" + name + "/" + name;
  std::string longest;
  while (longest.size() + many.size() <= 3840) longest += many;
  longest += "/" + std::string(3840 - longest.size() - 1, 'n');
  for (const std::string& good : {"run.dir=" + longest, "checkpoint.dir=/" + name + "/", "run.name=" + name})
    EXPECT_TRUE(resolved(good)) << resolved(good).error().message;
  const std::string is_long =
                        ": the path has 3842 bytes, but at most 3840 leave space for the names of the run's files; "
                        "shorten it",
                    has_long = ": a name in it has 256 bytes, but file systems allow 255; shorten it";
  const std::pair<std::string, std::string> table[] = {{"run.dir=" + longest + "/n", "run.dir" + is_long},
                                                       {"checkpoint.dir=" + longest + "/n", "checkpoint.dir" + is_long},
                                                       {"run.dir=a/" + name + "n/b", "run.dir" + has_long},
                                                       {"checkpoint.dir=" + name + "n", "checkpoint.dir" + has_long},
                                                       {"run.name=" + name + "n", "run.name" + has_long}};
  for (const auto& [override, message] : table) {
    const auto refused = resolved(override);
    ASSERT_FALSE(refused) << override;
    EXPECT_EQ(refused.error().message, with_count(message));
  }
}

TEST(BadConfig, all_errors_of_file_and_overrides_are_reported_together) {
  const Result<Config> config = parse_config(R"(run:
  steps: ten
model:
  heds: 4
  bias: 2
speed: fast
)",
                                             "quick.yaml", {"model.layers=0", "lr.peek=1"});
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().message,
            "quick.yaml:2: run.steps: ten is not an integer; allowed: integer >= 1; the default is 100\n"
            "quick.yaml:4: model.heds: unknown key; did you mean model.heads?\n"
            "quick.yaml:5: model.bias: 2 is not a boolean; allowed: true|false; the default is true\n"
            "quick.yaml:6: speed: unknown section; the sections are " SECTIONS
            "\n"
            "--set model.layers=0: model.layers: 0 is out of range; allowed: integer in [1, 100000]; try 1\n"
            "--set lr.peek=1: lr.peek: unknown key; did you mean lr.peak?\n"
            "6 errors");
}

}  // namespace
}  // namespace tri
