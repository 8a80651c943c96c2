// A graph of which rank waits for which in a job without progress, built from the records of its ranks.
//
// Nodes: the activities of each rank: its training thread (host), the work on its streams (device), its two readers of
// tokens, its writer of checkpoints. Each awaited operation is a rendezvous: a rank that awaits it has an edge to it,
// and it has edges to the members that are behind. So a group of n members has O(n) edges, however many of them wait.
//
// Edges: "`from` cannot continue before `to` does." Every edge is a necessary condition, so following any edge leads
// towards the cause.
//
// Sinks: the kind of fault for which a node would be blamed. If a node has both a sink and edges, the records do not
// show whether it works or waits: a running host, because a full queue of its streams may block it inside a launch; a
// backward pass during which gradients are reduced. locate_hang() blames it only if its edges lead to no other node.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/flight_recorder/record.h"
#include "lib/fault/adjacency.h"
#include "lib/fault/hang_locator.h"

namespace tri {

// Whether operation `a` comes before operation `b`; numbers wrap.
constexpr bool comes_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

class WaitGraph {
 public:
  enum Activity { kHost, kDevice, kReader, kValidationReader, kWriter };
  static constexpr int kActivities = 5;

  explicit WaitGraph(std::span<const RankRecord> records);

  int world_size() const { return static_cast<int>(records_.size()); }
  int num_nodes() const { return static_cast<int>(sinks_.size()); }
  const RankRecord* record(int rank) const { return records_[static_cast<size_t>(rank)]; }  // null: no record
  bool is_suspended() const { return suspended_; }                                          // all processes are stopped
  // Returns why the rank cannot continue: it has failed, its process is gone or stopped, or it has no record; none if
  // it runs. Not meaningful for a job whose processes have all ended, or are all stopped.
  std::optional<HangKind> lost(int rank) const { return lost_[static_cast<size_t>(rank)]; }

  int node(int rank, Activity activity) const { return rank * kActivities + activity; }
  int rank_of(int node) const {
    return node < world_size() * kActivities ? node / kActivities : -1;
  }  // -1: a rendezvous
  Activity activity_of(int node) const { return static_cast<Activity>(node % kActivities); }
  const std::optional<HangKind>& sink(int node) const { return sinks_[static_cast<size_t>(node)]; }
  const Adjacency& edges() const { return edges_; }
  const Adjacency& reversed() const { return reversed_; }

  // Returns "rank 13 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0)"; for a rank without a record, only what the mesh
  // determines.
  std::string place(int rank) const;
  std::string short_place(int rank) const;  // for example "rank 13 [pp1 dp0 tp1]"

  // For the node of a rendezvous: its name, such as "all-gather 8812 on tp"; its members (of a connection, those that
  // have not completed it); and the members that wait in it.
  std::string rendezvous_text(int node) const;
  std::vector<int> rendezvous_members(int node) const;
  std::vector<int> rendezvous_waiting(int node) const;
  // If members give the operation different names, which is the program's fault, returns an edge between two of them.
  std::optional<HangEdge> rendezvous_mismatch(int node) const;

  // For ranks whose nodes are linked by an edge or a rendezvous: "rank 3 waits for all-gather 8812 on tp of rank 2,
  // which is at 8811", and only "all-gather 8812 on tp".
  std::string edge_text(int from_rank, int to_rank) const;
  std::string awaited_text(int from_rank, int to_rank) const;
  // Describes each of the rank's waits, "all-gather 8812 on tp of ranks 2, 3"; the key, which groups similar ranks, is
  // only "tp".
  std::vector<std::string> waits_text(int rank) const;
  std::string waits_key(int rank) const;

 private:
  // What a member that is behind has not done: a part of a channel's operation, or a connection.
  enum class Stage : uint32_t { kJoined, kSent, kArrived, kConnected };
  struct Group {
    std::string name;
    ChannelKind kind;
    RankSet members;
    std::vector<int> channels;  // [member] index in its record; -1: it has no record of it yet
    bool is_whole = true;       // all members have the channel
    uint32_t lowest_joined = 0, lowest_sent = 0;

    int index_of(int rank) const { return members.stride == 0 ? 0 : (rank - members.first) / members.stride; }
  };
  struct Rendezvous {
    int group;  // for kConnected: the first rank found in it
    uint32_t number;
    Stage stage;
    uint64_t connection = 0;
  };
  struct Wait {
    int rank, channel, rendezvous;  // channel: -1 for a connection
  };

  void keep_records(std::span<const RankRecord> records);
  void judge_processes();
  void make_groups();
  void add_rank(int rank);
  void add_host(int rank, bool device_waits);
  bool add_device(int rank);
  bool add_channel_wait(int rank, int channel, Activity from);
  void add_data_wait(int rank);
  void add_reader(int rank, int loader);
  void add_connection(int rank);
  void finish_rendezvous();
  void finish_arrival(int rendezvous);
  void finish_connection(int rendezvous);
  void finish_counters(std::vector<int> indices);

  int rendezvous(const Rendezvous& rendezvous);  // returns its index
  int rendezvous_node(int index) const { return world_size() * kActivities + index; }
  void edge(int from, int to) {
    if (from != to) list_.emplace_back(from, to);
  }
  std::optional<HangKind>& sink_at(int rank, Activity activity) {
    return sinks_[static_cast<size_t>(node(rank, activity))];
  }
  const ChannelRecord* channel_of(const Group& group, int member) const;
  bool is_behind(const Rendezvous& rendezvous, int rank) const;
  bool any_behind(const Group& group, uint32_t number, Stage stage) const;
  std::vector<int> members_of(const Rendezvous& rendezvous) const;
  std::span<const Wait> waits_of(int rank) const;
  bool is_member(const Rendezvous& rendezvous, int rank) const;
  std::string operation_text(const Rendezvous& rendezvous) const;
  const Rendezvous* rendezvous_between(int from_rank, int to_rank) const;
  const Rendezvous& rendezvous_at(int node) const {
    return all_rendezvous_[static_cast<size_t>(node - world_size() * kActivities)];
  }
  const LoaderRecord* awaited_loader(int rank, int* loader) const;

  std::vector<const RankRecord*> records_;      // [world rank]
  std::vector<std::optional<HangKind>> lost_;   // [world rank]
  std::vector<std::optional<HangKind>> sinks_;  // [node]
  bool suspended_ = false;
  std::vector<Group> groups_;
  std::vector<std::vector<int>> group_of_;      // [world rank][channel]; -1: damaged
  std::vector<std::vector<int>> consumers_[2];  // [loader][reader's world rank]
  std::vector<Rendezvous> all_rendezvous_;
  std::unordered_map<uint64_t, int> rendezvous_index_, connection_index_;
  std::vector<Wait> waits_;  // by rank
  std::vector<std::pair<int, int>> list_;
  Adjacency edges_, reversed_;
};

}  // namespace tri
