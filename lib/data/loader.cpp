#include "lib/data/loader.h"

#include <chrono>

namespace tri {

Batch make_batch(const Dataset& dataset, Split split, int64_t step, const BatchShape& shape) {
  const auto length = static_cast<size_t>(dataset.seq_len());
  Batch batch{.step = step, .inputs = {}, .targets = {}};
  batch.inputs.reserve(static_cast<size_t>(shape.micros() * shape.micro_batch) * length);
  batch.targets.reserve(batch.inputs.capacity());
  std::vector<int32_t> tokens(length + 1);
  for (int m = 0; m < shape.micros(); ++m)
    for (int j = 0; j < shape.micro_batch; ++j) {
      const int64_t place = (int64_t{m} * shape.dp_size + shape.dp_rank) * shape.micro_batch + j;
      dataset.sample(split, step * shape.global_batch + place, tokens);
      batch.inputs.insert(batch.inputs.end(), tokens.begin(), tokens.end() - 1);
      batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
    }
  return batch;
}

Loader::Loader(const Dataset& dataset, Split split, BatchShape shape, int64_t first_step, int prefetch)
    : dataset_(dataset),
      split_(split),
      shape_(shape),
      prefetch_(static_cast<size_t>(prefetch)),
      next_step_(first_step) {
  TRI_REQUIRE(prefetch >= 1, "prefetch {}", prefetch);
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Loader::run() {
  try {
    for (;;) {
      Batch batch = make_batch(dataset_, split_, next_step_++, shape_);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || ready_.size() < prefetch_; });
      if (closing_) return;
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

const Batch& Loader::next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !ready_.empty(); });
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ready_.empty()) std::rethrow_exception(failure_);  // what was read before the failure is still good
  current_ = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return current_;
}

}  // namespace tri
