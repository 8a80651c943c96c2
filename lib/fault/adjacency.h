// Directed graphs over the nodes 0 .. n-1.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tri {

// The neighbours of all nodes in one array.
struct Adjacency {
  std::vector<int> begin, targets;
  Adjacency() = default;
  // `edges`: (from, to). `reversed`: a node's neighbours are those that have an edge to it.
  Adjacency(int num_nodes, const std::vector<std::pair<int, int>>& edges, bool reversed);
  int num_nodes() const { return static_cast<int>(begin.size()) - 1; }
  std::span<const int> of(int node) const {
    const auto first = static_cast<size_t>(begin[static_cast<size_t>(node)]);
    return {targets.data() + first, static_cast<size_t>(begin[static_cast<size_t>(node) + 1]) - first};
  }
};

// The strongly connected components (Tarjan 1972). Every edge leads to a component of the same or a lower number.
struct StrongComponents {
  explicit StrongComponents(const Adjacency& edges);
  int size() const { return static_cast<int>(begin.size()) - 1; }
  std::span<const int> nodes_of(int component) const {
    const auto first = static_cast<size_t>(begin[static_cast<size_t>(component)]);
    return {nodes.data() + first, static_cast<size_t>(begin[static_cast<size_t>(component) + 1]) - first};
  }

  std::vector<int> of;            // [node]
  std::vector<int> begin, nodes;  // nodes by component
};

}  // namespace tri
