#include "kernels/cross_entropy.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

template <class Args>
void check_logits(const char* op, const Args& a) {
  require_float(op, "logits", a.logits);
  TRI_REQUIRE(a.logits.dims == 2, "{}: logits {} are not (R, Vl)", op, a.logits.shape_text());
  require_tensor(op, "targets", a.targets, Dtype::kI32, {a.logits[0]});
  TRI_REQUIRE(a.first_token >= 0 && a.vocab > 0, "{}: logits {} from column {} of a vocabulary of {}", op,
              a.logits.shape_text(), a.first_token, a.vocab);
  TRI_REQUIRE(a.softcap >= 0.0f, "{}: softcap {}", op, a.softcap);
}

}  // namespace

void check(const CrossEntropyStats& a) {
  check_logits("cross_entropy_stats", a);
  require_tensor("cross_entropy_stats", "stats", a.stats, Dtype::kF32, {a.logits[0], 3});
}

void check(const CrossEntropyLoss& a) {
  check_logits("cross_entropy_loss", a);
  require_tensor("cross_entropy_loss", "loss", a.loss, Dtype::kF32, {1});
  if (a.stats.empty()) {
    TRI_REQUIRE(a.first_token == 0 && a.vocab <= a.logits[1],
                "cross_entropy_loss: logits {} from column {} of a vocabulary of {} need the other ranks' stats",
                a.logits.shape_text(), a.first_token, a.vocab);
    return;
  }
  TRI_REQUIRE(a.stats.dims == 3 && a.stats[0] > 0, "cross_entropy_loss: stats {} are not (tp, R, 3)",
              a.stats.shape_text());
  require_tensor("cross_entropy_loss", "stats", a.stats, Dtype::kF32, {a.stats[0], a.logits[0], 3});
}

}  // namespace tri
