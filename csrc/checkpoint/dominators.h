// Which nodes of a flow graph are immediately dominated by its entry: the heads of units (design §3).
#pragma once

#include <cstdint>
#include <vector>

namespace looseleaf::checkpoint {

using Node = std::int32_t;

// The edges beside the walk's tree, grouped by the node that they lead to.
class Predecessors {
 public:
  struct Edge {
    Node to;
    Node from;
  };

  Predecessors() = default;
  Predecessors(const std::vector<Edge>& edges, std::size_t node_count);

  const Node* begin(Node node) const { return from_.data() + offsets_[static_cast<std::size_t>(node)]; }
  const Node* end(Node node) const { return from_.data() + offsets_[static_cast<std::size_t>(node) + 1]; }
  bool any(Node node) const { return begin(node) != end(node); }

 private:
  std::vector<std::size_t> offsets_;
  std::vector<Node> from_;
};

// The immediate dominator of every node, 0 for the entry itself. Nodes are numbered in the order of one depth-first walk,
// the entry is 0; `parents[n] < n` is the node from which the walk first came to n, and all nodes are reachable from 0.
// Semi-NCA (Georgiadis 2005); nodes with a single way in cost almost nothing. Iterative.
std::vector<Node> immediate_dominators(const std::vector<Node>& parents, const Predecessors& extra);

// For each node its ancestor, or itself, that lies directly under the entry in the dominator tree; [0] is 0.
std::vector<Node> top_heads(const std::vector<Node>& dominators);

}  // namespace looseleaf::checkpoint
