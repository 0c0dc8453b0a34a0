#include "object_graph.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace py = pybind11;

namespace looseleaf::checkpoint {
namespace {

// In the index: looked at, and no node.
constexpr Node kCut = -1;
constexpr Node kUnknown = -2;
constexpr std::size_t kNodesMax = std::numeric_limits<Node>::max();

// Immutable values without children that containers are full of; they are not even looked up.
bool is_common_atom(PyObject* value) {
  PyTypeObject* const type = Py_TYPE(value);
  return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || value == Py_None ||
         type == &PyBool_Type || type == &PyComplex_Type;
}

// Builtin containers that a plain pickler saves as they are. Byte strings that are nodes are memory of their own.
bool is_plain_type(PyTypeObject* type) {
  return type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type ||
         type == &PyFrozenSet_Type;
}

PointerMap addresses(const py::iterable& values) {
  PointerMap found;
  for (const py::handle value : values) {
    const auto address = value.cast<std::uintptr_t>();
    if (address != 0) found.set(reinterpret_cast<const void*>(address), 1);
  }
  return found;
}

}  // namespace

ObjectGraph::ObjectGraph(py::function classify, py::function on_bytes, const py::iterable& cut,
                         const py::iterable& forced, Py_ssize_t bytes_node_min)
    : classify_(std::move(classify)),
      on_bytes_(std::move(on_bytes)),
      bytes_node_min_(bytes_node_min),
      cut_(addresses(cut)),
      forced_(addresses(forced)) {}

ObjectGraph::~ObjectGraph() {
  // A finaliser may run anything; by then this graph is empty for it.
  std::vector<PyObject*> owned;
  owned.swap(objects_);
  owned.insert(owned.end(), kept_.begin(), kept_.end());
  for (const Pending& pending : pending_) owned.push_back(pending.child);
  for (const auto& [type, action] : actions_) {
    owned.push_back(reinterpret_cast<PyObject*>(type));
    owned.push_back(action.handler);
  }
  for (PyObject* object : owned) Py_XDECREF(object);
}

const ObjectGraph::TypeAction& ObjectGraph::action_of(PyTypeObject* type) {
  const auto known = actions_.find(type);
  if (known != actions_.end()) return known->second;
  const py::object answer = classify_(py::handle(reinterpret_cast<PyObject*>(type)));
  TypeAction action{Action::kHandler, nullptr};
  if (PyLong_Check(answer.ptr())) {
    action.action = static_cast<Action>(answer.cast<int>());
    if (action.action > Action::kBytes) throw py::value_error("classify gave a number that is no action");
  } else {
    action.handler = answer.inc_ref().ptr();
  }
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  return actions_.emplace(type, action).first->second;
}

Node ObjectGraph::add_root(py::handle value) {
  if (is_found_) throw std::logic_error("the walk has ended");
  PyObject* const root = value.ptr();
  if (is_common_atom(root)) return 0;
  const Node known = index_.find(root, kUnknown);
  if (known > 0) add_edge_from_entry(known);
  if (known == kUnknown) {
    visit(root, 0);
    follow_pending();
  }
  return std::max(index_.find(root, 0), Node{0});
}

void ObjectGraph::add_edge_from_entry(Node node) {
  checked(node);
  edges_.push_back({node, 0});
}

void ObjectGraph::follow_pending() {
  while (!pending_.empty()) {
    const Pending next = pending_.back();
    pending_.pop_back();
    const auto owned = py::reinterpret_steal<py::object>(next.child);
    const Node known = index_.find(next.child, kUnknown);
    if (known != kUnknown) {
      visit_known(known, next.from);
    } else {
      visit(next.child, next.from);
    }
  }
}

void ObjectGraph::visit_known(Node known, Node from) {
  if (known == kCut) {
    mixed_[static_cast<std::size_t>(from)] = 1;
  } else if (edges_.empty() || edges_.back().to != known || edges_.back().from != from) {
    edges_.push_back({known, from});
  }
}

void ObjectGraph::visit(PyObject* value, Node from) {
  if (cut_.contains(value)) {
    index_.set(value, kCut);
    mixed_[static_cast<std::size_t>(from)] = 1;
    return;
  }
  const TypeAction known = action_of(Py_TYPE(value));
  switch (known.action) {
    case Action::kAtom:
      mixed_[static_cast<std::size_t>(from)] = 1;
      return;
    case Action::kBytes:
      if (!is_long_bytes(value)) return;
      number(value, from);
      on_bytes_(py::handle(value));
      return;
    case Action::kLeaf:
      number(value, from);
      return;
    case Action::kReferents:
      push_referents(value, number(value, from));
      return;
    case Action::kHandler:
      break;
  }
  const auto handler = py::reinterpret_borrow<py::object>(known.handler);
  const py::object children = handler(py::handle(value));
  if (children.is_none()) return cut_off(value, from);
  push_all(children, number(value, from));
}

bool ObjectGraph::is_long_bytes(PyObject* value) const {
  return !PyBytes_Check(value) || PyBytes_GET_SIZE(value) >= bytes_node_min_;
}

void ObjectGraph::cut_off(PyObject* value, Node from) {
  index_.set(value, kCut);
  kept_.push_back(Py_NewRef(value));
  mixed_[static_cast<std::size_t>(from)] = 1;
}

Node ObjectGraph::number(PyObject* value, Node from) {
  if (objects_.size() >= kNodesMax) throw std::length_error("more objects than a walk can number");
  const Node node = static_cast<Node>(objects_.size());
  objects_.push_back(Py_NewRef(value));
  parents_.push_back(from);
  mixed_.push_back(0);
  index_.set(value, node);
  if (from != 0 && forced_.contains(value)) add_edge_from_entry(node);
  return node;
}

// Called by tp_traverse: runs no Python code.
int ObjectGraph::collect(PyObject* child, void* self) {
  auto* const graph = static_cast<ObjectGraph*>(self);
  if (!is_common_atom(child)) graph->pending_.push_back({Py_NewRef(child), graph->collecting_for_});
  return 0;
}

void ObjectGraph::push_referents(PyObject* value, Node node) {
  const traverseproc traverse = Py_TYPE(value)->tp_traverse;
  if (traverse == nullptr || PyObject_IS_GC(value) == 0) return;
  const auto before = static_cast<std::ptrdiff_t>(pending_.size());
  collecting_for_ = node;
  traverse(value, &ObjectGraph::collect, this);
  // The last one in is the first one followed. Lists and tuples tell their members from the last to the first.
  if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) std::reverse(pending_.begin() + before, pending_.end());
}

void ObjectGraph::push_all(py::handle children, Node node) {
  const auto list = py::reinterpret_steal<py::object>(PySequence_Fast(children.ptr(), "a handler gives a sequence or None"));
  if (!list) throw py::error_already_set();
  const auto before = static_cast<std::ptrdiff_t>(pending_.size());
  collecting_for_ = node;
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(list.ptr()); ++place) {
    collect(PySequence_Fast_GET_ITEM(list.ptr(), place), this);
  }
  std::reverse(pending_.begin() + before, pending_.end());
}

void ObjectGraph::find_heads() {
  if (is_found_) throw std::logic_error("the walk has ended");
  is_found_ = true;
  predecessors_ = Predecessors(edges_, objects_.size());
  heads_ = top_heads(immediate_dominators(parents_, predecessors_));
  plain_.assign(objects_.size(), 1);
  for (std::size_t node = 1; node < objects_.size(); ++node) {
    const auto head = static_cast<std::size_t>(heads_[node]);
    const auto above = static_cast<std::size_t>(heads_[static_cast<std::size_t>(parents_[node])]);
    if (mixed_[node] != 0 || !is_plain_type(Py_TYPE(objects_[node]))) plain_[head] = 0;
    if (above != head) plain_[above] = 0;
  }
  for (const Predecessors::Edge& edge : edges_) {
    const Node above = heads_[static_cast<std::size_t>(edge.from)];
    if (above != heads_[static_cast<std::size_t>(edge.to)]) plain_[static_cast<std::size_t>(above)] = 0;
  }
}

py::object ObjectGraph::object(Node node) const { return py::reinterpret_borrow<py::object>(objects_[checked(node)]); }

std::vector<Node> ObjectGraph::heads() const {
  std::vector<Node> found;
  for (std::size_t node = 1; node < heads_.size(); ++node) {
    if (heads_[node] == static_cast<Node>(node)) found.push_back(static_cast<Node>(node));
  }
  return found;
}

std::vector<Node> ObjectGraph::other_predecessors(Node node) const {
  checked_found(node);
  return {predecessors_.begin(node), predecessors_.end(node)};
}

Node ObjectGraph::node_at(std::uintptr_t address) const {
  return std::max(index_.find(reinterpret_cast<const void*>(address), 0), Node{0});
}

std::size_t ObjectGraph::checked(Node node) const {
  if (node < 1 || static_cast<std::size_t>(node) >= objects_.size()) throw py::index_error("no such node");
  return static_cast<std::size_t>(node);
}

std::size_t ObjectGraph::checked_found(Node node) const {
  if (!is_found_) throw std::logic_error("the walk has not ended");
  return checked(node);
}

}  // namespace looseleaf::checkpoint
