#include "lib/config/other_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "lib/config/fields.h"

namespace tri {
namespace {

constexpr std::string_view kRanksAreStarted = "start the ranks with srun or mpirun -n RANKS, one per GPU";
constexpr std::string_view kNodesAreStarted = "start ranks on several nodes with srun, or with mpirun and its hosts";
constexpr std::string_view kRendezvous = "the launcher, srun or mpirun, connects the ranks; delete the setting";
constexpr std::string_view kNoDropout = "dropout is not supported; delete the setting";
constexpr std::string_view kFromEpochs = "optimizer steps: epochs x samples / data.global_batch";
constexpr std::string_view kPresets = "trireme config new --model NAME writes a config with the model of a preset";
constexpr std::string_view kImported =
    "trireme checkpoint import FOLDER RUN_DIR starts a run from a Hugging Face model";
constexpr std::string_view kPrepared = "a list of token files; trireme data prepare creates them";

constexpr OtherName kNames[] = {
    // the run
    {"train_iters", "run.steps"},
    {"max_steps", "run.steps"},
    {"training_steps", "run.steps"},
    {"num_epochs", "run.steps", kFromEpochs},
    {"num_train_epochs", "run.steps", kFromEpochs},
    {"max_epochs", "run.steps", kFromEpochs},
    {"train_samples", "run.steps", "optimizer steps: samples / data.global_batch"},
    {"output_dir", "run.dir"},
    {"dump_folder", "run.dir"},
    {"eval_interval", "run.eval_every"},
    {"eval_steps", "run.eval_every"},
    {"validation.freq", "run.eval_every"},
    {"validation.interval", "run.eval_every"},
    {"val_check_interval", "run.eval_every", "a number of steps, not a fraction of an epoch"},
    {"eval_iters", "run.eval_batches"},
    {"validation.steps", "run.eval_batches"},
    {"limit_val_batches", "run.eval_batches", "a number of global batches, not a fraction"},
    // the model
    {"num_layers", "model.layers"},
    {"n_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"hidden_size", "model.hidden"},
    {"dim", "model.hidden"},
    {"n_embd", "model.hidden"},
    {"num_attention_heads", "model.heads"},
    {"n_heads", "model.heads"},
    {"n_head", "model.heads"},
    {"kv_channels", "model.head_dim"},
    {"num_query_groups", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"ffn_hidden_size", "model.ffn_hidden"},
    {"intermediate_size", "model.ffn_hidden"},
    {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"},
    {"num_moe_experts", "model.experts"},
    {"n_routed_experts", "model.experts"},
    {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_router_topk", "model.experts_per_token"},
    {"moe_intermediate_size", "model.expert_hidden"},
    {"moe_ffn_hidden_size", "model.expert_hidden"},
    {"n_shared_experts", "model.shared_experts"},
    {"norm_topk_prob", "model.router_renormalize"},
    {"routed_scaling_factor", "model.router_scale"},
    {"moe_router_topk_scaling_factor", "model.router_scale"},
    {"first_k_dense_replace", "model.dense_layers"},
    {"moe_router_bias_update_rate", "model.router_bias_rate"},
    {"moe_aux_loss_coeff", "model.aux_loss"},
    {"router_aux_loss_coef", "model.aux_loss", "a sum over the layers; transformers pools them and counts each choice"},
    {"moe_z_loss_coeff", "model.router_z_loss"},
    {"vocab_size", "model.vocab"},
    {"padded_vocab_size", "model.vocab", "without padding, which Trireme adds internally"},
    {"seq_length", "model.seq_len"},
    {"sequence_len", "model.seq_len"},
    {"max_seq_len", "model.seq_len"},
    {"block_size", "model.seq_len"},
    {"encoder_seq_length", "model.seq_len"},
    {"max_position_embeddings", "model.seq_len"},
    {"sliding_window", "model.window"},
    {"window_size", "model.window", "tokens, including the token itself: Megatron-LM's left window + 1"},
    {"layer_types", "model.layer_pattern", "sliding_attention becomes window, full_attention full"},
    {"sliding_window_pattern", "model.layer_pattern", "6 becomes [window, window, window, window, window, full]"},
    {"attn_logit_softcapping", "model.attention_softcap"},
    {"query_pre_attn_scalar", "model.attention_scale", "the inverse square root of it"},
    {"final_logit_softcapping", "model.logit_softcap"},
    {"rope_local_base_freq", "model.rope_theta_local"},
    {"apply_layernorm_1p", "model.norm_offset", "true becomes 1"},
    {"layernorm_zero_centered_gamma", "model.norm_offset", "true becomes 1"},
    {"normalization", "model.norm"},
    {"hidden_act", "model.activation"},
    {"swiglu", "model.activation"},
    {"position_embedding_type", "model.position"},
    {"use_rotary_position_embeddings", "model.position"},
    {"rotary_base", "model.rope_theta"},
    {"use_rope_scaling", "model.rope_scaling", "true becomes llama3"},
    {"rope_scaling_factor", "model.rope_factor"},
    {"add_qkv_bias", "model.qkv_bias"},
    {"qk_layernorm", "model.qk_norm", "true becomes head"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layernorm_epsilon", "model.norm_eps"},
    {"norm_epsilon", "model.norm_eps"},
    {"init_method_std", "model.init_std"},
    {"initializer_range", "model.init_std"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings", "the opposite: untied is false"},
    {"disable_bias_linear", "model.bias", "the opposite: disabled is false"},
    {"model.name", "", kPresets},
    {"model.flavor", "", kPresets},
    {"architectures", "", kImported},
    {"model_type", "", kImported},
    {"attention_dropout", "", kNoDropout},
    {"hidden_dropout", "", kNoDropout},
    {"dropout", "", kNoDropout},
    // the data
    {"data_path", "data.sources", "a list: [PREFIX], or [{path: PREFIX, weight: NUMBER}, ...]"},
    {"data_prefix", "data.sources", "a list: [PREFIX], or [{path: PREFIX, weight: NUMBER}, ...]"},
    {"dataset", "data.sources", kPrepared},
    {"datasets", "data.sources", kPrepared},
    {"dataset_path", "data.sources", kPrepared},
    {"tokenizer_model", "data.tokenizer"},
    {"tokenizer_path", "data.tokenizer"},
    {"tokenizer_type", "data.tokenizer", "bytes, or a path; the file decides the type"},
    {"hf_assets_path", "data.tokenizer"},
    {"reset_attention_mask", "data.document_mask"},
    {"reset_position_ids", "data.reset_positions"},
    {"eod_mask_loss", "data.eod_loss", "false where eod_mask_loss is true"},
    {"global_batch_size", "data.global_batch"},
    {"train_batch_size", "data.global_batch"},
    {"gradient_accumulation_steps", "data.global_batch",
     "samples per step: data.micro_batch x replicas x accumulation steps"},
    {"micro_batch_size", "data.micro_batch"},
    {"local_batch_size", "data.micro_batch"},
    {"batch_size", "data.micro_batch",
     "samples per forward pass; data.global_batch is samples per step over all ranks"},
    {"per_device_train_batch_size", "data.micro_batch"},
    {"train_micro_batch_size_per_gpu", "data.micro_batch"},
    {"val_set_size", "data.validation_fraction", "a fraction, not a number of samples"},
    {"split", "data.validation_fraction", "a fraction: 949,50,1 becomes 0.05"},
    {"num_workers", "data.prefetch", "batches to read ahead; reader threads are started as needed"},
    {"dataloader_num_workers", "data.prefetch", "batches to read ahead; reader threads are started as needed"},
    // the parallel layout
    {"tensor_model_parallel_size", "parallel.tp"},
    {"tensor_parallel_degree", "parallel.tp"},
    {"tensor_parallel_size", "parallel.tp"},
    {"tensor_parallel", "parallel.tp"},
    {"pipeline_model_parallel_size", "parallel.pp"},
    {"pipeline_parallel_degree", "parallel.pp"},
    {"pipeline_parallel_size", "parallel.pp"},
    {"pipeline_parallel", "parallel.pp"},
    {"data_parallel_size", "parallel.dp"},
    {"data_parallel_replicate_degree", "parallel.dp", "replicate x shard degree; 0 = what the rank count leaves"},
    {"data_parallel_shard_degree", "parallel.dp", "replicate x shard degree; 0 = what the rank count leaves"},
    {"data_parallel", "parallel.dp"},
    {"virtual_pipeline_model_parallel_size", "parallel.chunks"},
    {"num_layers_per_virtual_pipeline_stage", "parallel.chunks",
     "chunks per stage: model.layers / parallel.pp / layers per chunk"},
    {"pipeline_parallel_schedule", "parallel.schedule"},
    {"zero_stage", "parallel.zero"},
    {"zero_optimization.stage", "parallel.zero"},
    {"use_distributed_optimizer", "parallel.zero", "1 shards the optimizer's states, and is the default"},
    {"deepspeed", "parallel.zero", "the ZeRO stage, 0 to 2; DeepSpeed's file is not read"},
    {"deepspeed_config", "parallel.zero", "the ZeRO stage, 0 to 2; DeepSpeed's file is not read"},
    {"fsdp", "parallel.zero", "2 shards gradients and optimizer states; weights are not sharded over dp"},
    {"recompute_granularity", "parallel.recompute"},
    {"activation_checkpoint", "parallel.recompute"},
    {"activation_checkpoint.mode", "parallel.recompute"},
    {"activations_checkpoint_granularity", "parallel.recompute"},
    {"recompute_activations", "parallel.recompute", "true becomes selective"},
    {"gradient_checkpointing", "parallel.recompute", "true becomes full"},
    {"sequence_parallel", "", "always on if parallel.tp is above 1; delete the setting"},
    {"context_parallel_size", "parallel.cp"},
    {"context_parallel_degree", "parallel.cp"},
    {"expert_model_parallel_size", "parallel.ep"},
    {"expert_parallel_degree", "parallel.ep"},
    // number formats
    {"bf16", "precision.compute"},
    {"dtype", "precision.compute"},
    {"torch_dtype", "precision.compute"},
    {"mixed_precision", "precision.compute"},
    {"fp16", "precision.compute", "fp16 is not supported; use bf16"},
    {"fp8", "precision.gemm"},
    {"float8", "precision.gemm"},
    {"fp8_format", "precision.gemm", "fp8; precision.fp8_gradients is the format of gradients"},
    // the optimizer and the learning rate
    {"optim", "optimizer.name"},
    {"optim.name", "optimizer.name"},
    {"optimizer.type", "optimizer.name"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"betas", "optimizer.beta1", "the first value; the second is optimizer.beta2"},
    {"adam_eps", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"muon_momentum", "optimizer.momentum"},
    {"clip_grad", "optimizer.clip"},
    {"max_norm", "optimizer.clip"},
    {"max_grad_norm", "optimizer.clip"},
    {"gradient_clip_val", "optimizer.clip"},
    {"gradient_clipping", "optimizer.clip"},
    {"lr", "lr.peak"},
    {"learning_rate", "lr.peak"},
    {"warmup_max_lr", "lr.peak"},
    {"min_lr", "lr.min"},
    {"min_lr_factor", "lr.min", "a learning rate: lr.peak x the factor"},
    {"lr_warmup_iters", "lr.warmup_steps"},
    {"warmup_num_steps", "lr.warmup_steps"},
    {"warmup_ratio", "lr.warmup_steps", "steps: run.steps x the ratio"},
    {"lr_warmup_fraction", "lr.warmup_steps", "steps: lr.decay_steps x the fraction"},
    {"lr_warmup_samples", "lr.warmup_steps", "steps: samples / data.global_batch"},
    {"lr_decay_iters", "lr.decay_steps"},
    {"lr_decay_samples", "lr.decay_steps", "steps: samples / data.global_batch"},
    {"total_num_steps", "lr.decay_steps"},
    {"decay_ratio", "lr.wsd_decay_fraction",
     "with lr.rule wsd: the last fraction of the steps, in which the rate decays"},
    {"lr_decay_style", "lr.rule"},
    {"decay_type", "lr.rule"},
    {"lr_scheduler", "lr.rule"},
    {"lr_scheduler_type", "lr.rule"},
    {"scheduler.type", "lr.rule"},
    {"scheduler.name", "lr.rule"},
    {"sched.name", "lr.rule"},
    // checkpoints and logs
    {"save", "checkpoint.dir"},
    {"checkpoint.folder", "checkpoint.dir"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"checkpoint.interval", "checkpoint.every"},  // in other sections, "interval" has other meanings
    {"save_total_limit", "checkpoint.keep_last"},
    {"save_top_k", "checkpoint.keep_last", "keeps the newest checkpoints, not those with the lowest loss"},
    {"keep_latest_k", "checkpoint.keep_last"},
    {"log_interval", "metrics.log_every"},
    {"log_freq", "metrics.log_every"},
    {"logging_steps", "metrics.log_every"},
    {"log_every_n_steps", "metrics.log_every"},
    {"steps_per_print", "metrics.log_every"},
    {"metrics.interval", "metrics.log_every"},
    {"metrics.freq", "metrics.log_every"},
    {"enable_tensorboard", "metrics.tensorboard"},
    {"save_tb_folder", "metrics.tensorboard", "true or false; the folder is run.dir/tensorboard"},
    {"tensorboard_dir", "metrics.tensorboard", "true or false; the folder is run.dir/tensorboard"},
    // job start
    {"nproc_per_node", "--ranks", kRanksAreStarted},
    {"ranks", "--ranks", kRanksAreStarted},
    {"np", "--ranks", kRanksAreStarted},
    {"gpus_per_node", "--ranks", kRanksAreStarted},
    {"num_gpus", "--ranks", kRanksAreStarted},
    {"gpus", "--ranks", kRanksAreStarted},
    {"devices", "--ranks", kRanksAreStarted},
    {"num_processes", "--ranks", kRanksAreStarted},
    {"world_size", "--ranks", kRanksAreStarted},
    {"ngpu", "--ranks", kRanksAreStarted},
    {"nnodes", "--ranks", kNodesAreStarted},
    {"num_nodes", "--ranks", kNodesAreStarted},
    {"num_machines", "--ranks", kNodesAreStarted},
    {"hostfile", "", kNodesAreStarted},
    {"master_addr", "", kRendezvous},
    {"master_port", "", kRendezvous},
    {"main_process_ip", "", kRendezvous},
    {"main_process_port", "", kRendezvous},
    {"rdzv_backend", "", kRendezvous},
    {"rdzv_endpoint", "", kRendezvous},
    {"rdzv_id", "", kRendezvous},
    {"standalone", "", kRendezvous},
    {"node_rank", "", kRendezvous},
    {"machine_rank", "", kRendezvous},
    {"local_rank", "", kRendezvous},
    {"max_restarts", "", "trireme supervise restarts a run"},
    {"distributed_backend", "", "run.device decides: GPUs use NCCL, CPU ranks use MPI"},
};

}  // namespace

std::span<const OtherName> other_names() { return kNames; }

Counterpart counterpart_of(std::string_view name) {
  std::string key(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  for (char& c : key) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (find_field(key)) return {.fields = {key}, .option = "", .remark = ""};
  const size_t dot = key.rfind('.');
  const std::string word = key.substr(dot + 1);  // npos + 1 is 0
  const std::string in_section = dot == key.npos || dot == 0 ? word : key.substr(key.rfind('.', dot - 1) + 1);
  for (const std::string& foreign : {in_section, word}) {
    const auto* const row = std::ranges::find(kNames, foreign, &OtherName::name);
    if (row == std::end(kNames)) continue;
    if (row->field.empty() || row->field[0] == '-') return {{}, std::string(row->field), row->remark};
    return {{std::string(row->field)}, "", row->remark};
  }
  Counterpart own;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields)
      if (field.key == word) own.fields.push_back(field.name());
  return own;
}

std::string to_string(const Counterpart& counterpart) {
  const std::string fields = fmt::format("{}", fmt::join(counterpart.fields, " or "));
  return counterpart.remark.empty() ? fields : fmt::format("{} ({})", fields, counterpart.remark);
}

}  // namespace tri
