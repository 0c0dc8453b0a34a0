#include "dominators.h"

#include <algorithm>
#include <numeric>

namespace looseleaf::checkpoint {
namespace {

std::size_t at(Node node) { return static_cast<std::size_t>(node); }

// Semidominators with path compression over the walk's tree.
class Semidominators {
 public:
  Semidominators(const std::vector<Node>& parents, const Predecessors& extra)
      : semi_(parents), label_(parents.size()), ancestor_(parents) {
    std::iota(label_.begin(), label_.end(), Node{0});
    for (Node node = static_cast<Node>(parents.size()) - 1; node > 0; --node) {
      Node least = parents[at(node)];
      for (const Node* from = extra.begin(node); from != extra.end(node); ++from) {
        least = std::min(least, *from < node ? *from : semi_[at(best_above(*from, node))]);
      }
      semi_[at(node)] = least;
    }
  }

  Node of(Node node) const { return semi_[at(node)]; }

 private:
  // The node of least semidominator on the tree path from `start` up to, not including, the nodes below `node`. Only
  // nodes numbered above `node` have their semidominator yet; the path is compressed up to the first other one.
  Node best_above(Node start, Node node) {
    path_.clear();
    Node top = start;
    for (; ancestor_[at(top)] > node; top = ancestor_[at(top)]) path_.push_back(top);
    Node best = label_[at(top)];
    for (auto step = path_.rbegin(); step != path_.rend(); ++step) {
      if (semi_[at(best)] < semi_[at(label_[at(*step)])]) {
        label_[at(*step)] = best;
      } else {
        best = label_[at(*step)];
      }
      ancestor_[at(*step)] = ancestor_[at(top)];
    }
    return label_[at(start)];
  }

  std::vector<Node> semi_;
  std::vector<Node> label_;
  std::vector<Node> ancestor_;
  std::vector<Node> path_;
};

}  // namespace

Predecessors::Predecessors(const std::vector<Edge>& edges, std::size_t node_count)
    : offsets_(node_count + 1, 0), from_(edges.size()) {
  for (const Edge& edge : edges) ++offsets_[at(edge.to) + 1];
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  std::vector<std::size_t> next(offsets_.begin(), offsets_.end() - 1);
  for (const Edge& edge : edges) from_[next[at(edge.to)]++] = edge.from;
}

std::vector<Node> immediate_dominators(const std::vector<Node>& parents, const Predecessors& extra) {
  std::vector<Node> dominators(parents);
  const Semidominators semi(parents, extra);
  for (Node node = 1; at(node) < parents.size(); ++node) {
    if (!extra.any(node)) continue;
    Node candidate = parents[at(node)];
    while (candidate > semi.of(node)) candidate = dominators[at(candidate)];
    dominators[at(node)] = candidate;
  }
  return dominators;
}

std::vector<Node> top_heads(const std::vector<Node>& dominators) {
  std::vector<Node> heads(dominators.size(), 0);
  for (Node node = 1; at(node) < dominators.size(); ++node) {
    const Node above = dominators[at(node)];
    heads[at(node)] = above == 0 ? node : heads[at(above)];
  }
  return heads;
}

}  // namespace looseleaf::checkpoint
