// The axes over which a job's ranks are spread, by name, and sets of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tri {

// Which tokens of a step the ranks along an axis process.
enum class AxisTokens {
  kSame,            // all of them the same tokens
  kPartsOfSamples,  // each a part of the same samples
  kOwnSamples,      // each its own samples
};

struct AxisRow {
  std::string_view name;  // also the config field under `parallel` that holds its size (AXIS_FIELD in fields.def)
  // Whether places and sizes name the axis even where it has one rank.
  bool always_named = false;
  AxisTokens tokens = AxisTokens::kSame;
};

// Fastest first: tp groups are runs of neighbouring ranks, inside a node, and stages are the farthest apart.
inline constexpr std::array kAxes = std::to_array<AxisRow>(
    {{"tp", true}, {"cp", false, AxisTokens::kPartsOfSamples}, {"dp", true, AxisTokens::kOwnSamples}, {"pp", true}});

// Axes that regroup the ranks of others. The ranks of a stage, numbered along kAxes without pp, are divided into groups
// of parallel.ep neighbours, which divide the experts of a layer (ep). The ranks with the same place in their groups
// hold the same experts (edp).
inline constexpr std::array<std::string_view, 2> kExpertAxes{"ep", "edp"};
inline constexpr size_t kNumAxisNames = kAxes.size() + kExpertAxes.size();

// The name of one of kAxes or kExpertAxes. A literal that is none of them does not compile.
class AxisName {
 public:
  consteval AxisName(const char* name) : index_(index_of(name)) {}  // implicit: mesh.axis("tp")
  static constexpr AxisName at(size_t index) { return AxisName(static_cast<uint32_t>(index)); }

  constexpr size_t index() const { return index_; }
  constexpr std::string_view text() const {
    return is_expert() ? kExpertAxes[index_ - kAxes.size()] : kAxes[index_].name;
  }
  constexpr bool is_expert() const { return index_ >= kAxes.size(); }  // of kExpertAxes
  bool operator==(const AxisName&) const = default;

 private:
  explicit constexpr AxisName(uint32_t index) : index_(index) {}
  static constexpr uint32_t index_of(std::string_view name) {
    for (uint32_t i = 0; i < kAxes.size(); ++i)
      if (kAxes[i].name == name) return i;
    for (uint32_t i = 0; i < kExpertAxes.size(); ++i)
      if (kExpertAxes[i] == name) return static_cast<uint32_t>(kAxes.size()) + i;
    throw std::invalid_argument("the name of an axis is not in kAxes");
  }

  uint32_t index_;
};

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<AxisName> names) {
    for (const AxisName name : names) bits_ |= bit(name);
  }
  // Returns all of kAxes that are not in `names`.
  static constexpr AxisSet outside(AxisSet names) { return AxisSet(((1U << kAxes.size()) - 1) & ~names.bits_); }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(AxisName name) const { return (bits_ & bit(name)) != 0; }
  constexpr bool has_expert_axes() const { return bits_ >> kAxes.size() != 0; }
  // Orders sets by their slowest axes.
  constexpr uint32_t bits() const { return bits_; }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return AxisSet(a.bits_ | b.bits_); }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & ~b.bits_); }
  bool operator==(const AxisSet&) const = default;

 private:
  explicit constexpr AxisSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit(AxisName name) { return 1U << name.index(); }

  uint32_t bits_ = 0;
};

// Returns the axes whose ranks process `least` or, in the order of the enum, more different tokens.
consteval AxisSet axes_with(AxisTokens least) {
  AxisSet axes;
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (kAxes[i].tokens >= least) axes = axes | AxisSet{AxisName::at(i)};
  return axes;
}

// The axes over which the tokens of a step are divided, so that gradients and losses must be summed over them; and of
// these the axes over which its samples are divided.
inline constexpr AxisSet kTokenAxes = axes_with(AxisTokens::kPartsOfSamples);
inline constexpr AxisSet kSampleAxes = axes_with(AxisTokens::kOwnSamples);

// All ranks of a stage, whatever the number of experts' groups: over them a weight is reduced that each of them applies
// to its own rows.
inline constexpr AxisSet kRowAxes{"ep", "edp"};

std::string to_string(AxisSet axes);  // "{tp, dp}"

}  // namespace tri
