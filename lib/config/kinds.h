// The choices of the config itself. Those of kernels and schedules are defined in kernels/core/{device,dtype,kinds}.h
// and lib/schedule/plan.h.
#pragma once

#include "io/base/enum_names.h"
#include "io/base/log_level.h"

namespace tri {

// The device that a config requests. lib/engine/job_plan.h decides which DeviceKind (kernels/core/kinds.h) a job runs
// on.
enum class DeviceChoice { kAuto, kCpu, kCuda };
enum class Block { kSequential, kParallel };
enum class Position { kLearned, kRope };
enum class NormPosition { kPre, kPost, kBoth };  // of a branch's norms: lib/model/block.h
enum class LayerAttention { kFull, kWindow };    // which earlier tokens a layer attends to
enum class QkNorm { kNone, kHead, kFull };
enum class AutoFlag { kAuto, kFalse, kTrue };
// By what they spare; auto: the least that fits.
enum class Recompute { kNone, kNorms, kSelective, kFull, kAuto };
enum class OptimizerKind { kAdamW, kLamb, kMuon };
enum class Transfers { kAuto, kCopies, kCollectives };
enum class PpTransfers { kAuto, kCopies, kMessages };
enum class OnNonfinite { kStop, kSkip };
enum class Switch { kOff, kOn };
// The number format of the layers' GEMMs (qkv, proj, fc1, fc2).
enum class GemmFormat { kCompute, kFp8 };
// Which of their sums GPUs may accumulate with fewer bits.
enum class FastAccumulation { kNone, kForward, kAll };
enum class LrRule { kConstant, kLinear, kCosine, kWsd };
enum class LrBy { kSteps, kTokens };
enum class Packing { kStream, kBestFit };

template <>
struct EnumNames<DeviceChoice> {
  static constexpr std::array table{std::pair{DeviceChoice::kAuto, std::string_view("auto")},
                                    std::pair{DeviceChoice::kCpu, std::string_view("cpu")},
                                    std::pair{DeviceChoice::kCuda, std::string_view("cuda")}};
};
template <>
struct EnumNames<Block> {
  static constexpr std::array table{std::pair{Block::kSequential, std::string_view("sequential")},
                                    std::pair{Block::kParallel, std::string_view("parallel")}};
};
template <>
struct EnumNames<Position> {
  static constexpr std::array table{std::pair{Position::kLearned, std::string_view("learned")},
                                    std::pair{Position::kRope, std::string_view("rope")}};
};
template <>
struct EnumNames<NormPosition> {
  static constexpr std::array table{std::pair{NormPosition::kPre, std::string_view("pre")},
                                    std::pair{NormPosition::kPost, std::string_view("post")},
                                    std::pair{NormPosition::kBoth, std::string_view("both")}};
};
template <>
struct EnumNames<LayerAttention> {
  static constexpr std::array table{std::pair{LayerAttention::kFull, std::string_view("full")},
                                    std::pair{LayerAttention::kWindow, std::string_view("window")}};
};
template <>
struct EnumNames<QkNorm> {
  static constexpr std::array table{std::pair{QkNorm::kNone, std::string_view("none")},
                                    std::pair{QkNorm::kHead, std::string_view("head")},
                                    std::pair{QkNorm::kFull, std::string_view("full")}};
};
template <>
struct EnumNames<AutoFlag> {
  static constexpr std::array table{std::pair{AutoFlag::kAuto, std::string_view("auto")},
                                    std::pair{AutoFlag::kFalse, std::string_view("false")},
                                    std::pair{AutoFlag::kTrue, std::string_view("true")}};
};
template <>
struct EnumNames<Recompute> {
  static constexpr std::array table{
      std::pair{Recompute::kNone, std::string_view("none")}, std::pair{Recompute::kNorms, std::string_view("norms")},
      std::pair{Recompute::kSelective, std::string_view("selective")},
      std::pair{Recompute::kFull, std::string_view("full")}, std::pair{Recompute::kAuto, std::string_view("auto")}};
};
template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array table{std::pair{OptimizerKind::kAdamW, std::string_view("adamw")},
                                    std::pair{OptimizerKind::kLamb, std::string_view("lamb")},
                                    std::pair{OptimizerKind::kMuon, std::string_view("muon")}};
};
template <>
struct EnumNames<Transfers> {
  static constexpr std::array table{std::pair{Transfers::kAuto, std::string_view("auto")},
                                    std::pair{Transfers::kCopies, std::string_view("copies")},
                                    std::pair{Transfers::kCollectives, std::string_view("collectives")}};
};
template <>
struct EnumNames<PpTransfers> {
  static constexpr std::array table{std::pair{PpTransfers::kAuto, std::string_view("auto")},
                                    std::pair{PpTransfers::kCopies, std::string_view("copies")},
                                    std::pair{PpTransfers::kMessages, std::string_view("messages")}};
};
template <>
struct EnumNames<OnNonfinite> {
  static constexpr std::array table{std::pair{OnNonfinite::kStop, std::string_view("stop")},
                                    std::pair{OnNonfinite::kSkip, std::string_view("skip")}};
};
template <>
struct EnumNames<Switch> {
  static constexpr std::array table{std::pair{Switch::kOff, std::string_view("off")},
                                    std::pair{Switch::kOn, std::string_view("on")}};
};
template <>
struct EnumNames<GemmFormat> {
  static constexpr std::array table{std::pair{GemmFormat::kCompute, std::string_view("compute")},
                                    std::pair{GemmFormat::kFp8, std::string_view("fp8")}};
};
template <>
struct EnumNames<FastAccumulation> {
  static constexpr std::array table{std::pair{FastAccumulation::kNone, std::string_view("none")},
                                    std::pair{FastAccumulation::kForward, std::string_view("forward")},
                                    std::pair{FastAccumulation::kAll, std::string_view("all")}};
};
template <>
struct EnumNames<LrRule> {
  static constexpr std::array table{std::pair{LrRule::kConstant, std::string_view("constant")},
                                    std::pair{LrRule::kLinear, std::string_view("linear")},
                                    std::pair{LrRule::kCosine, std::string_view("cosine")},
                                    std::pair{LrRule::kWsd, std::string_view("wsd")}};
};
template <>
struct EnumNames<Packing> {
  static constexpr std::array table{std::pair{Packing::kStream, std::string_view("stream")},
                                    std::pair{Packing::kBestFit, std::string_view("best_fit")}};
};
template <>
struct EnumNames<LrBy> {
  static constexpr std::array table{std::pair{LrBy::kSteps, std::string_view("steps")},
                                    std::pair{LrBy::kTokens, std::string_view("tokens")}};
};

}  // namespace tri
