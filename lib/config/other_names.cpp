#include "lib/config/other_names.h"

#include <algorithm>
#include <cctype>

namespace tri {
namespace {

constexpr OtherName kNames[] = {
    // the run
    {"train_iters", "run.steps"},
    {"max_steps", "run.steps"},
    {"training_steps", "run.steps"},
    {"num_epochs", "run.steps"},
    {"num_train_epochs", "run.steps"},
    {"output_dir", "run.dir"},
    {"dump_folder", "run.dir"},
    {"eval_interval", "run.eval_every"},
    {"eval_steps", "run.eval_every"},
    {"val_check_interval", "run.eval_every"},
    {"eval_iters", "run.eval_batches"},
    {"limit_val_batches", "run.eval_batches"},
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
    {"num_query_groups", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"ffn_hidden_size", "model.ffn_hidden"},
    {"intermediate_size", "model.ffn_hidden"},
    {"vocab_size", "model.vocab"},
    {"padded_vocab_size", "model.vocab"},
    {"seq_length", "model.seq_len"},
    {"sequence_len", "model.seq_len"},
    {"max_seq_len", "model.seq_len"},
    {"block_size", "model.seq_len"},
    {"encoder_seq_length", "model.seq_len"},
    {"max_position_embeddings", "model.seq_len"},
    {"sliding_window", "model.window"},
    {"window_size", "model.window"},
    {"normalization", "model.norm"},
    {"hidden_act", "model.activation"},
    {"position_embedding_type", "model.position"},
    {"rotary_base", "model.rope_theta"},
    {"rms_norm_eps", "model.norm_eps"},
    {"layernorm_epsilon", "model.norm_eps"},
    {"init_method_std", "model.init_std"},
    {"initializer_range", "model.init_std"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings"},
    // the data
    {"data_path", "data.sources"},
    {"data_prefix", "data.sources"},
    {"dataset", "data.sources"},
    {"datasets", "data.sources"},
    {"dataset_path", "data.sources"},
    {"tokenizer_model", "data.tokenizer"},
    {"tokenizer_path", "data.tokenizer"},
    {"tokenizer_type", "data.tokenizer"},
    {"hf_assets_path", "data.tokenizer"},
    {"global_batch_size", "data.global_batch"},
    {"gradient_accumulation_steps", "data.global_batch"},
    {"micro_batch_size", "data.micro_batch"},
    {"local_batch_size", "data.micro_batch"},
    {"batch_size", "data.micro_batch"},
    {"per_device_train_batch_size", "data.micro_batch"},
    {"val_set_size", "data.validation_fraction"},
    // how it is spread
    {"tensor_model_parallel_size", "parallel.tp"},
    {"tensor_parallel_degree", "parallel.tp"},
    {"tensor_parallel_size", "parallel.tp"},
    {"tensor_parallel", "parallel.tp"},
    {"pipeline_model_parallel_size", "parallel.pp"},
    {"pipeline_parallel_degree", "parallel.pp"},
    {"pipeline_parallel_size", "parallel.pp"},
    {"pipeline_parallel", "parallel.pp"},
    {"data_parallel_size", "parallel.dp"},
    {"data_parallel_replicate_degree", "parallel.dp"},
    {"data_parallel_shard_degree", "parallel.dp"},
    {"data_parallel", "parallel.dp"},
    {"virtual_pipeline_model_parallel_size", "parallel.chunks"},
    {"num_layers_per_virtual_pipeline_stage", "parallel.chunks"},
    {"pipeline_parallel_schedule", "parallel.schedule"},
    {"zero_stage", "parallel.zero"},
    {"use_distributed_optimizer", "parallel.zero"},
    {"deepspeed", "parallel.zero"},
    {"fsdp", "parallel.zero"},
    {"recompute_granularity", "parallel.recompute"},
    {"activation_checkpoint", "parallel.recompute"},
    {"activations_checkpoint_granularity", "parallel.recompute"},
    {"gradient_checkpointing", "parallel.recompute"},
    // number formats
    {"bf16", "precision.compute"},
    {"dtype", "precision.compute"},
    {"torch_dtype", "precision.compute"},
    {"mixed_precision", "precision.compute"},
    {"fp8", "precision.gemm"},
    {"fp8_format", "precision.gemm"},
    // the update and its rate
    {"optim", "optimizer.name"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"betas", "optimizer.beta1"},
    {"adam_eps", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"clip_grad", "optimizer.clip"},
    {"max_norm", "optimizer.clip"},
    {"max_grad_norm", "optimizer.clip"},
    {"gradient_clip_val", "optimizer.clip"},
    {"lr", "lr.peak"},
    {"learning_rate", "lr.peak"},
    {"min_lr", "lr.min"},
    {"min_lr_factor", "lr.min"},
    {"lr_warmup_iters", "lr.warmup_steps"},
    {"warmup_ratio", "lr.warmup_steps"},
    {"lr_decay_iters", "lr.decay_steps"},
    {"decay_ratio", "lr.decay_steps"},
    {"lr_decay_style", "lr.rule"},
    {"decay_type", "lr.rule"},
    {"lr_scheduler", "lr.rule"},
    {"lr_scheduler_type", "lr.rule"},
    // checkpoints and logs
    {"save", "checkpoint.dir"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"keep_latest_k", "checkpoint.keep_last"},
    {"log_interval", "metrics.log_every"},
    {"log_freq", "metrics.log_every"},
    {"logging_steps", "metrics.log_every"},
    {"log_every_n_steps", "metrics.log_every"},
    {"enable_tensorboard", "metrics.tensorboard"},
    {"tensorboard_dir", "metrics.tensorboard"},
};

}  // namespace

std::span<const OtherName> other_names() { return kNames; }

std::string field_of_other_name(std::string_view key) {
  std::string name(key.substr(std::min(key.find_first_not_of('-'), key.size())));
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  name.erase(0, name.rfind('.') + 1);  // npos + 1 is 0
  const auto* const found = std::ranges::find(kNames, name, &OtherName::name);
  return found == std::end(kNames) ? "" : std::string(found->field);
}

}  // namespace tri
