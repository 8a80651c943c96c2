#include "lib/fault/adjacency.h"

#include <algorithm>

namespace tri {

Adjacency::Adjacency(int num_nodes, const std::vector<std::pair<int, int>>& edges, bool reversed)
    : begin(static_cast<size_t>(num_nodes) + 1), targets(edges.size()) {
  for (const auto& [from, to] : edges) ++begin[static_cast<size_t>(reversed ? to : from) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<int> next(begin.begin(), begin.end() - 1);
  for (const auto& [from, to] : edges)
    targets[static_cast<size_t>(next[static_cast<size_t>(reversed ? to : from)]++)] = reversed ? from : to;
}

// Iterative, because chains of waits can be as long as the job has ranks.
StrongComponents::StrongComponents(const Adjacency& edges) : of(static_cast<size_t>(edges.num_nodes()), -1) {
  struct Visit {
    int node;
    size_t next;  // neighbour
  };
  std::vector<int> order(of.size(), -1), low(of.size()), open;
  std::vector<Visit> path;
  int visited = 0;
  const auto enter = [&](int node) {
    order[static_cast<size_t>(node)] = low[static_cast<size_t>(node)] = visited++;
    open.push_back(node);
    path.push_back({node, 0});
  };
  begin.push_back(0);
  for (int root = 0; root < edges.num_nodes(); ++root) {
    if (order[static_cast<size_t>(root)] < 0) enter(root);
    while (!path.empty()) {
      const int node = path.back().node;
      int& lowest = low[static_cast<size_t>(node)];
      const auto neighbours = edges.of(node);
      if (path.back().next < neighbours.size()) {
        const auto next = static_cast<size_t>(neighbours[path.back().next++]);
        if (order[next] < 0)
          enter(static_cast<int>(next));
        else if (of[next] < 0)
          lowest = std::min(lowest, order[next]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        int& before = low[static_cast<size_t>(path.back().node)];
        before = std::min(before, lowest);
      }
      if (lowest != order[static_cast<size_t>(node)]) continue;
      int member = -1;
      do {
        member = open.back();
        open.pop_back();
        of[static_cast<size_t>(member)] = static_cast<int>(begin.size()) - 1;
        nodes.push_back(member);
      } while (member != node);
      begin.push_back(static_cast<int>(nodes.size()));
    }
  }
}

}  // namespace tri
