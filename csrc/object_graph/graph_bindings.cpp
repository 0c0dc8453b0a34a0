// The module looseleaf.checkpoint._graph. Each function's contract stands in looseleaf/checkpoint/_graph.pyi.
#include <pybind11/stl.h>

#include "object_graph.h"

namespace py = pybind11;
namespace og = looseleaf::object_graph;

PYBIND11_MODULE(_graph, module) {
  module.doc() = "The walk over a session's live objects.";
  module.attr("ATOM") = static_cast<int>(og::Action::kAtom);
  module.attr("REFERENTS") = static_cast<int>(og::Action::kReferents);
  module.attr("LEAF") = static_cast<int>(og::Action::kLeaf);
  module.attr("BYTES") = static_cast<int>(og::Action::kBytes);
  py::class_<og::ObjectGraph>(module, "ObjectGraph", py::is_final())
      .def(py::init<py::function, py::function, const py::iterable&, const py::iterable&, Py_ssize_t>(), py::kw_only(),
           py::arg("classify"), py::arg("on_bytes"), py::arg("cut"), py::arg("forced"), py::arg("bytes_node_min"))
      .def("__len__", &og::ObjectGraph::size)
      .def("add_root", &og::ObjectGraph::add_root, py::arg("value"))
      .def("add_edge_from_entry", &og::ObjectGraph::add_edge_from_entry, py::arg("node"))
      .def("find_heads", &og::ObjectGraph::find_heads)
      .def("object", &og::ObjectGraph::object, py::arg("node"))
      .def("parent", &og::ObjectGraph::parent, py::arg("node"))
      .def("head", &og::ObjectGraph::head, py::arg("node"))
      .def("is_plain", &og::ObjectGraph::is_plain, py::arg("node"))
      .def("heads", &og::ObjectGraph::heads)
      .def("nodes_of_type", &og::ObjectGraph::nodes_of_type, py::arg("kind"))
      .def("other_predecessors", &og::ObjectGraph::other_predecessors, py::arg("node"))
      .def("node_at", &og::ObjectGraph::node_at, py::arg("address"));
}
