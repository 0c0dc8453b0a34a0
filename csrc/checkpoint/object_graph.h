// One walk over live Python objects: which of them are shared between roots, and by which way each is reached.
//
// Contracts stand in looseleaf/checkpoint/_native.pyi. Everything here needs the GIL. While an object's references are
// listed no Python code runs; it runs only where `classify`, a handler or `on_bytes` is called.
#pragma once

#include <pybind11/pybind11.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "dominators.h"
#include "pointer_map.h"

namespace looseleaf::checkpoint {

// What is done with the objects of one type; a handler is called for those that are none of the first four.
enum class Action : std::uint8_t { kAtom, kReferents, kLeaf, kBytes, kHandler };

class ObjectGraph {
 public:
  ObjectGraph(pybind11::function classify, pybind11::function on_bytes, const pybind11::iterable& cut,
              const pybind11::iterable& forced, Py_ssize_t bytes_node_min);
  ~ObjectGraph();
  ObjectGraph(const ObjectGraph&) = delete;
  ObjectGraph& operator=(const ObjectGraph&) = delete;

  // Walks on from `value`; its node, or 0 if it is an atom or cut.
  Node add_root(pybind11::handle value);
  void add_edge_from_entry(Node node);
  // Ends the walk: from here on the questions below are answered, and nothing can be added.
  void find_heads();

  std::size_t size() const { return objects_.size(); }
  pybind11::object object(Node node) const;
  Node parent(Node node) const { return parents_[checked(node)]; }
  Node head(Node node) const { return heads_[checked_found(node)]; }
  bool is_plain(Node node) const { return plain_[checked_found(node)] != 0; }
  // Nodes that head units, ascending.
  std::vector<Node> heads() const;
  // All nodes that refer to `node` but its parent, with repetitions.
  std::vector<Node> other_predecessors(Node node) const;
  // The node of the object at that address, 0 if there is none.
  Node node_at(std::uintptr_t address) const;

 private:
  // A reference that was seen and not yet followed; it owns the object.
  struct Pending {
    PyObject* child;
    Node from;
  };
  struct TypeAction {
    Action action;
    PyObject* handler;
  };

  static int collect(PyObject* child, void* self);
  const TypeAction& action_of(PyTypeObject* type);
  void follow_pending();
  void visit(PyObject* value, Node from);
  void visit_known(Node known, Node from);
  Node number(PyObject* value, Node from);
  void push_referents(PyObject* value, Node node);
  void push_all(pybind11::handle children, Node node);
  void cut_off(PyObject* value, Node from);
  bool is_long_bytes(PyObject* value) const;
  std::size_t checked(Node node) const;
  std::size_t checked_found(Node node) const;

  pybind11::function classify_;
  pybind11::function on_bytes_;
  Py_ssize_t bytes_node_min_;
  PointerMap cut_;
  PointerMap forced_;

  std::unordered_map<PyTypeObject*, TypeAction> actions_;
  std::vector<PyObject*> objects_{nullptr};
  std::vector<Node> parents_{0};
  // The node refers to atoms of other than builtin types, or to what was cut off.
  std::vector<std::uint8_t> mixed_{0};
  PointerMap index_;
  std::vector<Predecessors::Edge> edges_;
  // Kept alive as the nodes are: an address in the index must not come to mean another object.
  std::vector<PyObject*> kept_;

  std::vector<Pending> pending_;
  Node collecting_for_ = 0;

  bool is_found_ = false;
  Predecessors predecessors_;
  std::vector<Node> heads_;
  std::vector<std::uint8_t> plain_;
};

}  // namespace looseleaf::checkpoint
