// Whom the doctor looks at: every node before the first attempt, where that is asked for, and the node at fault after
// one.
#include "io/base/log.h"
#include "lib/supervise/supervisor.h"

namespace tri {

bool Supervisor::doctor_has_answered(const Node& node) const {
  return heard_since_order(node) && node.report.doctor_status >= 0;
}

// Spares too: they are to be in order when they are needed. A node that has not reported yet is no reason to wait.
void Supervisor::examine(double now) {
  for (const std::string& name : usable(now)) {
    Node& node = nodes_.at(name);
    if (!has_come(node)) continue;
    order(node, OrderKind::kDoctor);
    agents_.send(name, node.order);
    examined_.push_back(name);
  }
  log_info("supervise: the doctor looks at {} nodes", examined_.size());
  enter(Phase::kExamine, now);
}

void Supervisor::await_examination(double now) {
  std::vector<std::pair<std::string, Diagnosis>> nodes;
  for (const std::string& name : examined_) {
    Node& node = nodes_.at(name);
    const bool answered = doctor_has_answered(node);
    if (!answered && now - since_ <= thresholds_.doctor_seconds && !is_lost(name, node, now)) return;
    nodes.emplace_back(name, answered ? diagnosis_of(node.report.doctor_status) : Diagnosis::kUnknown);
  }
  for (const Decision& decision :
       decide_before_start(nodes, setup_.nodes_needed, static_cast<int>(usable(now).size()))) {
    log_warn("supervise: before the first attempt: {} {}: {}", enum_name(decision.action), decision.node, decision.why);
    book_.append({.kind = RunEventKind::kDecision,
                  .host = decision.node,
                  .text = decision.why,
                  .fields = {{"action", std::string(enum_name(decision.action))}}},
                 "");
    if (decision.action == Response::kExclude) exclude(decision.node, decision.why, now);
  }
  examination_seconds_ = now - since_;
  enter(Phase::kGather, now);
}

void Supervisor::await_doctor(double now) {
  const Node& node = nodes_.at(suspect_);
  const bool answered = doctor_has_answered(node);
  if (!answered && now - since_ <= thresholds_.doctor_seconds) return;
  book_.append(diagnosis_event(suspect_, now - since_, current_.step), current_.attempt);
  decide_now(answered ? diagnosis_of(node.report.doctor_status) : Diagnosis::kUnknown, now);
}

}  // namespace tri
