// The module looseleaf.checkpoint._native. Each function's contract stands in looseleaf/checkpoint/_native.pyi.
#include <pybind11/stl.h>

#include "canonical.h"
#include "finalizers.h"
#include "object_graph.h"
#include "persistent_id.h"

namespace py = pybind11;
namespace lc = looseleaf::checkpoint;

namespace {

py::bytes canonical(const py::bytes& data) {
  const auto made = lc::canonical_pickle(static_cast<std::string_view>(data));
  return made ? py::bytes(*made) : data;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "The walk over a session's live objects, and the bytes of units.";
  module.attr("ATOM") = static_cast<int>(lc::Action::kAtom);
  module.attr("REFERENTS") = static_cast<int>(lc::Action::kReferents);
  module.attr("LEAF") = static_cast<int>(lc::Action::kLeaf);
  module.attr("BYTES") = static_cast<int>(lc::Action::kBytes);
  module.def("canonical", &canonical, py::arg("data"));
  module.def("mark_finalized", &lc::mark_finalized, py::arg("value"));
  module.def("make_persistent_id", &lc::make_persistent_id, py::arg("ids"), py::arg("used"));
  py::class_<lc::ObjectGraph>(module, "ObjectGraph", py::is_final())
      .def(py::init<py::function, py::function, const py::iterable&, const py::iterable&, Py_ssize_t>(), py::kw_only(),
           py::arg("classify"), py::arg("on_bytes"), py::arg("cut"), py::arg("forced"), py::arg("bytes_node_min"))
      .def("__len__", &lc::ObjectGraph::size)
      .def("add_root", &lc::ObjectGraph::add_root, py::arg("value"))
      .def("add_edge_from_entry", &lc::ObjectGraph::add_edge_from_entry, py::arg("node"))
      .def("find_heads", &lc::ObjectGraph::find_heads)
      .def("object", &lc::ObjectGraph::object, py::arg("node"))
      .def("parent", &lc::ObjectGraph::parent, py::arg("node"))
      .def("head", &lc::ObjectGraph::head, py::arg("node"))
      .def("is_plain", &lc::ObjectGraph::is_plain, py::arg("node"))
      .def("heads", &lc::ObjectGraph::heads)
      .def("other_predecessors", &lc::ObjectGraph::other_predecessors, py::arg("node"))
      .def("node_at", &lc::ObjectGraph::node_at, py::arg("address"));
}
