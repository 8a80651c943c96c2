// Who is slower than the ranks that do the same work, from every rank's times (io/ranks/rank_times.h).
//
// A role is ranks that compute the same and send as much: those of one stage with the same place in their tp group,
// where there are enough of them; else all of the stage. (Of a small model the vocabulary's parts are unequal work:
// most tokens are in the first.) A stage may rightly take longer than another (the head's does), so ranks are compared
// within their role alone. Where a stage is one rank, the inner stages of equal FLOPs are one role, since they compute
// the same, too. Waits tell nothing: the slow one waits the least.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/ranks/rank_times.h"

namespace tri {

// The roles of the mesh: world ranks of each, ascending. Every rank is in one.
std::vector<std::vector<int>> roles_of(const RankMesh& mesh);

// The middle one of the values; of an even number the lower of the two in the middle: a fault makes slow, never fast.
double lower_median(std::vector<double> values);

// By how much each rank (by world rank) is slower than its role, and in what.
struct Slowness {
  double compute = 0;  // its compute over the role's median, less 1
  double send = 0;     // what its sends to neighbour stages take longer than the role's median, over the step
  double worst() const { return compute > send ? compute : send; }
};
std::vector<Slowness> slowness_of(const RankMesh& mesh, const RankWindow& window);

struct RankStraggler {
  int world_rank = 0;
  RankQuantity what = RankQuantity::kCompute;  // or kSend: in what it is slow
  double slowdown = 0;                         // the mean over `windows`; 0.1: by 10 %
  int64_t windows = 0, first_step = 0;         // since when
  bool doctor = false;                         // it was slow enough for long enough: its machine ought to be examined
};

// What a window of times gives to say.
struct StragglerNews {
  enum class Kind {
    kSlow,    // a rank has become a straggler, or ought to be examined now
    kOver,    // ... is none any more
    kStages,  // no rank of `stage` stands out, but it takes longer than its FLOPs let expect: no machine's fault
    kData,    // steps wait for data
  };
  Kind kind = Kind::kSlow;
  RankStraggler straggler;  // of kSlow and kOver
  int stage = 0;            // of kStages
  double share = 0;         // of kStages: above what is expected; of kData: of the step
};

// Follows an attempt, window after window.
class StragglerWatch {
 public:
  // A rank is named once its windows have been slower than kIgnored by kEvidence in sum, where none counts more than
  // kMostOfWindow, and by kSlow in their mean: by 10 % after 2 windows, by 5 % after 5. Noise that all ranks have
  // counts as slowness does not.
  static constexpr double kIgnored = 0.03, kSlow = 0.05, kEvidence = 0.1, kMostOfWindow = 0.05, kMostEvidence = 0.2;
  static constexpr double kDoctor = 0.1;  // and for kDoctorWindows: the machine ought to be examined
  static constexpr int64_t kDoctorWindows = 10;
  static constexpr double kStageExcess = 0.1,
                          kDataShare = 0.05;  // in kWindows windows one after the other: worth a word
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
  std::vector<int> stage_windows_;  // in which the stage took too long, one after the other
  int data_windows_ = 0;
};

// How much longer each stage's compute takes than its share of the FLOPs lets expect, (pp): 0.1: by 10 %.
std::vector<double> stage_excess(const RankMesh& mesh, const RankWindow& window);

// "rank 5 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0) computes 11 % longer than its peers of stage 1, since step 101"
std::string to_string(const RankMesh& mesh, const RankStraggler& straggler);

}  // namespace tri
