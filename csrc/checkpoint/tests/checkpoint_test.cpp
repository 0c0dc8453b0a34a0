// The parts of the walk that need no Python, under the sanitizers: `make native-test`. Dominators against their definition
// on random graphs, the pointer map against the standard library's, canonical pickles of damaged bytes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "canonical.h"
#include "dominators.h"
#include "pointer_map.h"

namespace lc = looseleaf::checkpoint;
using lc::Node;

namespace {

int failed = 0;

void expect(bool truth, const char* text) {
  if (truth) return;
  ++failed;
  std::printf("expected %s\n", text);
}

using Graph = std::vector<std::vector<Node>>;

// Numbers what node 0 reaches in depth-first order.
struct Numbered {
  std::vector<Node> parents{0};
  std::vector<lc::Predecessors::Edge> extra;
  Graph successors;
};

Numbered number(const Graph& graph) {
  Numbered found;
  std::vector<Node> numbers(graph.size(), -1);
  std::vector<std::pair<std::size_t, Node>> edges;
  std::function<void(std::size_t)> enter = [&](std::size_t at) {
    for (const Node below : graph[at]) {
      const auto to = static_cast<std::size_t>(below);
      edges.emplace_back(at, below);
      if (numbers[to] >= 0) {
        if (numbers[to] > 0) found.extra.push_back({numbers[to], numbers[at]});
        continue;
      }
      numbers[to] = static_cast<Node>(found.parents.size());
      found.parents.push_back(numbers[at]);
      enter(to);
    }
  };
  numbers[0] = 0;
  enter(0);
  found.successors.resize(found.parents.size());
  for (const auto& [from, to] : edges) {
    found.successors[static_cast<std::size_t>(numbers[from])].push_back(numbers[static_cast<std::size_t>(to)]);
  }
  return found;
}

bool reaches(const Graph& graph, Node target, Node without) {
  std::vector<char> seen(graph.size(), 0);
  std::vector<Node> todo;
  if (without != 0) todo.push_back(0);
  while (!todo.empty()) {
    const Node at = todo.back();
    todo.pop_back();
    if (at == target) return true;
    for (const Node below : graph[static_cast<std::size_t>(at)]) {
      if (below == without || seen[static_cast<std::size_t>(below)]++ != 0) continue;
      todo.push_back(below);
    }
  }
  return false;
}

void test_dominators(std::mt19937& random) {
  const auto size = std::uniform_int_distribution<std::size_t>(2, 14)(random);
  Graph graph(size);
  for (auto& successors : graph) {
    const auto count = std::uniform_int_distribution<int>(0, 3)(random);
    for (int edge = 0; edge < count; ++edge) {
      successors.push_back(static_cast<Node>(std::uniform_int_distribution<std::size_t>(0, size - 1)(random)));
    }
  }
  const Numbered walked = number(graph);
  const auto found = lc::immediate_dominators(walked.parents, lc::Predecessors(walked.extra, walked.parents.size()));
  const auto heads = lc::top_heads(found);
  const auto count = static_cast<Node>(walked.parents.size());
  for (Node node = 1; node < count; ++node) {
    // The immediate dominator is the one that all other dominators of the node dominate.
    std::vector<Node> dominators;
    for (Node other = 0; other < count; ++other) {
      if (other != node && !reaches(walked.successors, node, other)) dominators.push_back(other);
    }
    const Node nearest = *std::max_element(dominators.begin(), dominators.end(), [&](Node one, Node other) {
      return one != other && (one == 0 || !reaches(walked.successors, other, one));
    });
    expect(found[static_cast<std::size_t>(node)] == nearest, "the nearest dominator");
    const Node above = found[static_cast<std::size_t>(node)];
    const Node head = heads[static_cast<std::size_t>(node)];
    expect(head == (above == 0 ? node : heads[static_cast<std::size_t>(above)]), "the head under the entry");
  }
}

void test_pointer_map(std::mt19937& random) {
  lc::PointerMap map;
  std::map<const void*, std::int32_t> reference;
  for (int round = 0; round < 5000; ++round) {
    const auto address = static_cast<std::uintptr_t>(std::uniform_int_distribution<int>(1, 3000)(random)) * 16;
    const void* const key = reinterpret_cast<const void*>(address);
    const auto known = reference.find(key);
    expect(map.find(key, -7) == (known == reference.end() ? -7 : known->second), "what was stored");
    expect(map.contains(key) == (known != reference.end()), "to know what was stored");
    map.set(key, round);
    reference[key] = round;
  }
  expect(map.size() == reference.size(), "one entry a key");
}

// Nothing that is read may lie outside, whatever the bytes are.
void test_canonical(std::mt19937& random) {
  static const std::string kSeeds[] = {
      std::string("\x80\x05\x95\x0c\0\0\0\0\0\0\0]\x94(\x8c\x01" "a\x94h\x01\x8c\x01" "b\x94h\x01" "e.", 28),
      std::string("\x80\x05\x8d\x03\0\0\0\0\0\0\0abc\x94j\0\0\0\0\x86.", 21),
      std::string("\x80\x05\x8a\x02\x01\x01\x96\x02\0\0\0\0\0\0\0xy\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", 28),
  };
  std::string data = kSeeds[std::uniform_int_distribution<std::size_t>(0, 2)(random)];
  for (int change = std::uniform_int_distribution<int>(0, 4)(random); change > 0; --change) {
    const auto place = std::uniform_int_distribution<std::size_t>(0, data.size() - 1)(random);
    data[place] = static_cast<char>(std::uniform_int_distribution<int>(0, 255)(random));
  }
  data.resize(std::uniform_int_distribution<std::size_t>(0, data.size())(random));
  const std::vector<char> exact(data.begin(), data.end());
  const auto made = lc::canonical_pickle({exact.data(), exact.size()});
  if (made) expect(lc::canonical_pickle(*made) == made, "a canonical pickle to stay as it is");
}

// Opcodes with arguments of every kind, well formed or not, and pickles that are cut, joined and repeated.
std::string random_pickle(std::mt19937& random) {
  static const std::string kOpcodes = std::string("\x95\x2e\x94\x68\x6a\x80\x4b\x82\x4d\x83\x4a\x84\x47\x8a\x43\x8c\x8b\x42\x58\x8e\x96\x8d", 22) +
                                      "cFgiILpPSVqrQ]})(a0R\x81\x92\x93";
  const auto number = [&](std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
  };
  std::string data;
  for (auto count = number(0, 40); count > 0; --count) {
    const auto opcode = static_cast<unsigned char>(kOpcodes[number(0, kOpcodes.size() - 1)]);
    data.push_back(static_cast<char>(opcode));
    if (opcode == 0x8C) {
      const auto size = number(0, 3);
      data.push_back(static_cast<char>(size));
      data.append(size, 'a');
      if (number(0, 1) == 1) data.push_back('\x94');
    } else if (opcode == 0x68) {
      data.push_back(static_cast<char>(number(0, 6)));
    } else {
      // Lengths of any size: few of them fit what follows.
      for (auto bytes = number(0, 9); bytes > 0; --bytes) {
        data.push_back(static_cast<char>(number(0, 3) == 0 ? number(0, 255) : 0));
      }
    }
  }
  if (number(0, 1) == 1) data.push_back('.');
  return number(0, 3) == 0 ? data + data : data;
}

void test_random_pickles(std::mt19937& random) {
  const std::string data = random_pickle(random);
  const std::vector<char> exact(data.begin(), data.end());
  const auto made = lc::canonical_pickle({exact.data(), exact.size()});
  if (made) expect(lc::canonical_pickle(*made) == made, "a canonical pickle of any bytes to stay as it is");
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) test_dominators(random);
  for (int round = 0; round < 50000; ++round) test_canonical(random);
  for (int round = 0; round < 200000; ++round) test_random_pickles(random);
  test_pointer_map(random);
  if (failed != 0) return std::printf("%d checks of the checkpoint code failed\n", failed), 1;
  std::printf("checkpoint: passed\n");
  return 0;
}
