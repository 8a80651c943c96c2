#include "lib/data/loader.h"

#include <algorithm>
#include <chrono>

#include "io/base/clock.h"
#include "io/base/mutex.h"
#include "lib/data/target_mask.h"

namespace tri {
namespace {

using namespace std::chrono_literals;

// The batches of a plan, one after the other.
class BatchCursor {
 public:
  explicit BatchCursor(const LoaderPlan& plan) : plan_(plan), shape_(plan.shape), first_sample_(plan.first_sample) {
    set();
  }

  const BatchShape& shape() const { return shape_; }
  // Returns the global index of the n-th sample, in the order (M, B), that dp rank `dp_rank` trains on.
  int64_t sample_index(int dp_rank, int n) const {
    const int m = n / shape_.micro_batch, j = n % shape_.micro_batch;
    return first_sample_ + (int64_t{m} * shape_.dp_size + dp_rank) * shape_.micro_batch + j;
  }
  // Returns the index of the plan's part; requires parts.
  size_t part() const { return part_; }
  void advance() {
    first_sample_ += shape_.global_batch;
    ++batch_;
    set();
  }

 private:
  void set() {
    if (!plan_.parts.empty()) return set_part();
    if (plan_.sizes) {
      shape_.global_batch = plan_.sizes->at(first_sample_);
      return;
    }
    const int64_t step = plan_.first_step + batch_;
    first_sample_ = (plan_.period > 0 ? step % plan_.period : step) * plan_.shape.global_batch;
    end_at(plan_.num_samples);
  }

  void set_part() {
    int64_t all = 0;
    for (const LoaderPart& part : plan_.parts) all += part.batches;
    int64_t batch = batch_ % all;
    for (part_ = 0; batch >= plan_.parts[part_].batches; ++part_) batch -= plan_.parts[part_].batches;
    first_sample_ = batch * plan_.shape.global_batch;
    end_at(plan_.parts[part_].num_samples);
  }

  // The batch that holds the last of `num_samples` samples has no microbatch without one of them.
  void end_at(int64_t num_samples) {
    const int64_t left = num_samples - first_sample_;
    shape_ = left > 0 ? plan_.shape.for_samples(left) : plan_.shape;
  }

  const LoaderPlan& plan_;
  BatchShape shape_;
  int64_t batch_ = 0, first_sample_;
  size_t part_ = 0;
};

// Polls, since another process could not signal a lock of this one. The pauses grow with the time waited, so that a
// ring without a consumer for minutes costs nothing. Returns false when closing.
template <class Done>
bool poll(const std::atomic<bool>& closing, Done done) {
  const auto begin = std::chrono::steady_clock::now();
  while (!closing) {
    if (done()) return true;
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(waited / 64, 1us, 20ms));
  }
  return false;
}

flight::LoaderStatus* loader_status_of(const LoaderPlan& plan) {
  return plan.recorder == nullptr ? nullptr : &plan.recorder->image().loaders[plan.split == Split::kTrain ? 0 : 1];
}

}  // namespace

BatchRing::Shape LoaderPlan::ring() const {
  return {.slots = prefetch,
          .consumers = members,
          .slot_tokens = static_cast<int64_t>(dp_ranks.size()) * shape.samples() * sample_elements()};
}

// The state of member 0's reading thread. The thread shares its ownership: a read that storage does not answer may
// outlive the loader, the ring and the flight recorder. Only file reads run without mutex_.
class Loader::Reader {
 public:
  Reader(const Dataset* dataset, const LoaderPlan& plan, const BatchRing& ring)
      : plan_(plan), ring_(ring), cursor_(plan_), sample_(static_cast<size_t>(plan.sample_elements())) {
    for (const LoaderPart& part : plan_.parts) datasets_.push_back(*part.dataset);
    if (plan_.parts.empty()) datasets_.push_back(*dataset);
  }

  // Runs on the reading thread.
  void read_all() {
    try {
      for (int64_t batch = 0; batch < plan_.end_step - plan_.first_step; ++batch) {
        {
          const MutexLock lock(mutex_);
          if (is_abandoned_) return;
          if (!ring_.may_write(batch)) reader_is(ReaderState::kAwaitsConsumers);
        }
        const auto may_write = [&] {
          const MutexLock lock(mutex_);
          return !is_abandoned_ && ring_.may_write(batch);
        };
        if (!poll(closing_, may_write) || !read(batch)) break;
      }
      end([&]() TRI_REQUIRES(mutex_) {
        if (!closing_) reader_is(ReaderState::kDone);
      });
    } catch (const Fatal& problem) {
      end([&]() TRI_REQUIRES(mutex_) { ring_.fail(problem.code(), problem.what()); });
    } catch (const std::exception& problem) {  // a bug in this program
      end([&]() TRI_REQUIRES(mutex_) { ring_.fail(static_cast<ExitCode>(1), problem.what()); });
    }
  }

  // Called by the loader's thread.
  void close() { closing_ = true; }
  // After close(): returns whether the reading thread has ended within `limit`. From then on it uses neither the ring
  // nor the flight recorder.
  bool ended_within(std::chrono::seconds limit) {
    const MutexLock lock(mutex_);
    const bool ended = changed_.wait_for(mutex_, limit, [&]() TRI_REQUIRES(mutex_) { return has_ended_; });
    is_abandoned_ = !ended;
    return ended;
  }

 private:
  void reader_is(ReaderState state) const TRI_REQUIRES(mutex_) {
    if (flight::LoaderStatus* const shown = loader_status_of(plan_)) plan_.recorder->enter(*shown, state);
  }

  template <class Last>
  void end(Last last) {
    const MutexLock lock(mutex_);
    if (!is_abandoned_) last();
    has_ended_ = true;
    changed_.notify_all();
  }

  // Returns false when closing.
  bool read(int64_t batch) {
    const bool parts = !plan_.parts.empty();
    const Dataset& dataset = datasets_[parts ? cursor_.part() : 0];
    const Split split = parts ? plan_.parts[cursor_.part()].split : plan_.split;
    const int64_t num_samples = parts ? plan_.parts[cursor_.part()].num_samples : plan_.num_samples;
    int64_t bytes = 0;
    size_t at = 0;
    {
      const MutexLock lock(mutex_);
      if (is_abandoned_) return false;
      reader_is(ReaderState::kReads);
    }
    for (const int dp_rank : plan_.dp_ranks)
      for (int n = 0; n < cursor_.shape().samples(); ++n, at += sample_.size()) {
        if (closing_) return false;
        const int64_t index = cursor_.sample_index(dp_rank, n);
        const bool repeats = num_samples > 0 && index >= num_samples;
        const int64_t sample = repeats ? index % num_samples : index;
        const auto tokens = std::span(sample_).first(static_cast<size_t>(plan_.sample_tokens())),
                   starts = std::span(sample_).subspan(tokens.size());
        if (tokens.empty())
          std::ranges::copy(dataset.document_starts(split, sample), starts.begin());
        else
          bytes += dataset.sample(split, sample, tokens, starts);
        if (repeats) std::ranges::transform(tokens, tokens.begin(), masked);
        const MutexLock lock(mutex_);
        if (is_abandoned_) return false;
        std::ranges::copy(sample_, ring_.slot(batch).subspan(at).begin());
      }
    cursor_.advance();
    const MutexLock lock(mutex_);
    if (is_abandoned_) return false;
    ring_.publish(batch, bytes);
    if (flight::LoaderStatus* const shown = loader_status_of(plan_))
      shown->published = static_cast<uint32_t>(batch + 1);
    return true;
  }

  std::vector<Dataset> datasets_;  // of the parts, or the only one
  const LoaderPlan plan_;
  BatchRing ring_ TRI_GUARDED_BY(mutex_);  // a view
  BatchCursor cursor_;                     // of the reading thread
  std::vector<int32_t> sample_;
  std::atomic<bool> closing_ = false;
  Mutex mutex_;
  ConditionVariable changed_;
  bool is_abandoned_ TRI_GUARDED_BY(mutex_) = false, has_ended_ TRI_GUARDED_BY(mutex_) = false;
};

Loader::Loader(const Dataset* dataset, LoaderPlan plan, void* memory, std::array<StepTokens, 2> buffers,
               std::function<void()> check)
    : plan_(std::move(plan)), ring_(memory, plan_.ring()), buffers_(buffers), check_(std::move(check)) {
  const auto& dp_ranks = plan_.dp_ranks;
  TRI_REQUIRE(std::find(dp_ranks.begin(), dp_ranks.end(), plan_.shape.dp_rank) != dp_ranks.end(), "dp rank {} of {}",
              plan_.shape.dp_rank, dp_ranks.size());
  const auto readable = [&](const Dataset* data) { return data != nullptr && data->seq_len() == plan_.seq_len; };
  const bool reads_parts = std::ranges::all_of(plan_.parts, readable, &LoaderPart::dataset);
  TRI_REQUIRE(plan_.member != 0 || (plan_.parts.empty() ? readable(dataset) : reads_parts),
              "the reading member of {} needs a dataset of {} tokens a sample", plan_.members, plan_.seq_len);
  const int64_t samples = plan_.shape.samples(), local = samples * plan_.chunks().local_len();
  for (const StepTokens& buffer : buffers_)
    for (const auto& [place, tokens] : {std::pair{buffer.inputs, local}, std::pair{buffer.targets, local},
                                        std::pair{buffer.document_starts, samples * plan_.seq_len}})
      TRI_REQUIRE(place.empty() || std::ssize(place) == tokens, "a buffer of {} tokens for {}", place.size(), tokens);
  TRI_REQUIRE(plan_.documents != Documents::kIgnored || buffers_[0].document_starts.empty(),
              "a ring without documents");
  TRI_REQUIRE(plan_.documents != Documents::kOnly || (buffers_[0].inputs.empty() && buffers_[0].targets.empty()),
              "a ring without tokens");
  if (plan_.member == 0) {
    reader_ = std::make_shared<Reader>(dataset, plan_, ring_);
    reading_ = std::thread([reader = reader_] { reader->read_all(); });
  }
  consumer_ = std::thread([this] { take_all(); });
}

Loader::~Loader() {
  closing_ = true;
  {
    const MutexLock lock(mutex_);  // the consumer reads closing_ under it
  }
  changed_.notify_all();
  if (reader_) reader_->close();
  consumer_.join();
  if (plan_.member != 0) return;
  reader_->ended_within(kReaderTimeout) ? reading_.join() : reading_.detach();
  ring_.end();
}

void Loader::take_all() {
  try {
    BatchCursor cursor(plan_);
    for (int64_t batch = 0; batch < num_batches(); ++batch, cursor.advance()) {
      {
        const MutexLock lock(mutex_);  // batches 0 and 1 find both buffers free
        while (!closing_ && batch > released_ + 1) changed_.wait(mutex_);
      }
      if (!poll(closing_, [&] { return ring_.ready(batch); })) return;
      take(batch, cursor.shape());
    }
  } catch (...) {
    const MutexLock lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::take(int64_t batch, const BatchShape& shape) {
  const int64_t length = plan_.seq_len, samples = shape.samples(), local = plan_.chunks().local_len();
  const std::vector<SequencePiece> pieces = plan_.chunks().pieces();
  const auto part = [&](std::span<int32_t> buffer, int64_t of_sample) {
    return buffer.empty() ? buffer : buffer.first(static_cast<size_t>(samples * of_sample));
  };
  const StepTokens& buffer = buffers_[static_cast<size_t>(batch % 2)];
  StepTokens& out = filled_parts_[static_cast<size_t>(batch % 2)];
  out = {.inputs = part(buffer.inputs, local),
         .targets = part(buffer.targets, local),
         .document_starts = part(buffer.document_starts, length),
         .pairs = {}};
  const auto place = std::find(plan_.dp_ranks.begin(), plan_.dp_ranks.end(), plan_.shape.dp_rank);
  const int32_t* tokens =
      std::as_const(ring_).slot(batch).data() + (place - plan_.dp_ranks.begin()) * samples * plan_.sample_elements();
  for (int64_t n = 0; n < samples; ++n, tokens += plan_.sample_elements()) {
    for (const SequencePiece& piece : pieces) {
      const int32_t* first = tokens + piece.global;
      const int64_t to = n * local + piece.local;
      if (!out.inputs.empty()) std::transform(first, first + piece.count, out.inputs.data() + to, token_of);
      if (!out.targets.empty()) std::transform(first + 1, first + 1 + piece.count, out.targets.data() + to, target_of);
    }
    if (!out.document_starts.empty())
      std::copy_n(tokens + plan_.sample_tokens(), length, out.document_starts.data() + n * length);
  }
  if (!out.document_starts.empty())
    for (const int window : plan_.windows)
      out.pairs.push_back(attention_pairs(out.document_starts, plan_.seq_len, window));
  const int64_t bytes = plan_.member == 0 ? ring_.bytes_read(batch) : 0;
  const int64_t targets = std::ranges::count_if(out.targets, [](int32_t target) { return target != kNoTarget; });
  ring_.taken(plan_.member, batch);
  const MutexLock lock(mutex_);
  read_for_[batch % 2] = bytes;
  targets_[batch % 2] = targets;
  filled_ = batch + 1;
  changed_.notify_all();
}

// Waits until the batch is in its buffer.
void Loader::await(int64_t batch) {
  const auto start = std::chrono::steady_clock::now();
  const HostScope waits(HostState::kAwaitsData);
  const auto ready = [&]() TRI_REQUIRES(mutex_) { return failure_ || filled_ > batch; };
  while (!changed_.wait_for(mutex_, 20ms, ready))
    if (check_) check_();
  wait_seconds_ += seconds_since(start);
  if (filled_ <= batch) std::rethrow_exception(failure_);  // batches before the failure are still valid
}

int64_t Loader::next_targets() {
  if (batch_ == num_batches()) return 0;
  const MutexLock lock(mutex_);
  await(batch_);
  return targets_[batch_ % 2];
}

const StepTokens& Loader::next() {
  TRI_REQUIRE(batch_ < num_batches(), "step {} of [{}, {})", plan_.first_step + batch_, plan_.first_step,
              plan_.end_step);
  if (flight::LoaderStatus* const shown = loader_status_of(plan_)) shown->wanted = static_cast<uint32_t>(batch_ + 1);
  const MutexLock lock(mutex_);
  released_ = batch_;
  changed_.notify_all();
  await(batch_);
  bytes_read_ += read_for_[batch_ % 2];
  return filled_parts_[static_cast<size_t>(batch_++ % 2)];
}

}  // namespace tri
