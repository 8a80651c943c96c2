// Finds ranks that are slower than the ranks with the same work, from every rank's times (io/ranks/rank_times.h).
//
// A role is a set of ranks that compute the same and send the same amount: those of one stage with the same tp rank, if
// there are enough of them; else all of the stage. (In a small model the parts of the vocabulary are unequal work: most
// tokens are in the first.) A stage may legitimately take longer than another, such as the head's, so ranks are
// compared only within their role. If a stage is one rank, inner stages with equal FLOPs form one role, since they also
// compute the same. Waits are not compared: the slow rank waits the least.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/ranks/rank_times.h"

namespace tri {

// Returns the roles of the mesh: the world ranks of each, ascending. Every rank is in one.
std::vector<std::vector<int>> roles_of(const RankMesh& mesh);

// Returns the median; of an even number of values, the lower of the two middle ones, because faults only slow ranks
// down.
double lower_median(std::vector<double> values);

// How much slower each rank (by world rank) is than its role, and in what.
struct Slowness {
  double compute = 0;  // its compute over the role's median, minus 1
  double send = 0;     // how much longer its sends to neighbour stages take than the role's median, over the step
  double worst() const { return compute > send ? compute : send; }
};
std::vector<Slowness> slowness_of(const RankMesh& mesh, const RankWindow& window);

struct RankStraggler {
  int world_rank = 0;
  RankQuantity what = RankQuantity::kCompute;  // kCompute or kSend
  double slowdown = 0;                         // the mean over `windows`; 0.1: by 10 %
  int64_t windows = 0, first_step = 0;         // when it began
  bool doctor = false;                         // slow enough for long enough that its machine should be examined
};

// A finding in a window of times.
struct StragglerNews {
  enum class Kind {
    kSlow,    // a rank has become a straggler, or should be examined now
    kOver,    // ... has stopped being one
    kStages,  // no rank of `stage` stands out, but it takes longer than its FLOPs predict, which is not a machine's
              // fault
    kData,    // steps wait for data
  };
  Kind kind = Kind::kSlow;
  RankStraggler straggler;  // for kSlow and kOver
  int stage = 0;            // for kStages
  double share = 0;         // for kStages: above what is expected; for kData: of the step
};

// Follows an attempt, window by window.
class StragglerWatch {
 public:
  // A rank is reported once its windows have exceeded kIgnored by kEvidence in total, with each counting at most
  // kMostOfWindow, and kSlow on average: by 10 % after 2 windows, by 5 % after 5. Noise common to all ranks does not
  // count.
  static constexpr double kIgnored = 0.03, kSlow = 0.05, kEvidence = 0.1, kMostOfWindow = 0.05, kMostEvidence = 0.2;
  static constexpr double kDoctor = 0.1;  // if a rank is this much slower for kDoctorWindows, its machine should be
                                          // examined
  static constexpr int64_t kDoctorWindows = 10;
  static constexpr double kStageExcess = 0.1,
                          kDataShare = 0.05;  // reported after kWindows consecutive windows
  static constexpr int kWindows = 5;

  explicit StragglerWatch(RankMesh mesh);

  std::vector<StragglerNews> add(const RankWindow& window);
  const std::vector<RankStraggler>& stragglers() const { return stragglers_; }  // by world rank

 private:
  struct Case {
    double evidence = 0;
    double compute = 0, send = 0;  // sums over `windows`
    int64_t windows = 0, first_step = 0;
    bool named = false, doctor = false;
  };
  void judge(int world_rank, const Slowness& slowness, double noise, const RankWindow& window,
             std::vector<StragglerNews>& news);
  RankStraggler straggler_of(int world_rank) const;
  void look_at_stages(const RankWindow& window, std::vector<StragglerNews>& news);
  void look_at_data(const RankWindow& window, std::vector<StragglerNews>& news);

  const RankMesh mesh_;
  std::vector<Case> cases_;  // by world rank
  std::vector<RankStraggler> stragglers_;
  std::vector<int> stage_windows_;  // consecutive windows in which the stage took too long
  int data_windows_ = 0;
};

// Returns how much longer each stage's compute takes than its share of the FLOPs predicts, (pp): 0.1: by 10 %.
std::vector<double> stage_excess(const RankMesh& mesh, const RankWindow& window);

// Returns "rank 5 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0) computes 11 % longer than its peers of stage 1, since step
// 101".
std::string to_string(const RankMesh& mesh, const RankStraggler& straggler);

}  // namespace tri
