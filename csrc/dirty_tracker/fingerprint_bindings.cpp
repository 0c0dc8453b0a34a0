#include <pybind11/stl.h>

#include <string>

#include "core_bindings.h"
#include "fingerprint_host.h"
#include "python_buffer.h"
#include "python_errors.h"
#include "python_key.h"
#include "region_hash.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

py::bytes region_fingerprints(const py::object& buffer, std::size_t region_bytes, const py::bytes& secret,
                              const std::string& schedule, unsigned threads) {
  const PythonBuffer view(buffer, PythonBuffer::Access::kRead);
  const fingerprint::Key key = key_of(secret);
  const std::size_t size = Regions(view.bytes().size, region_bytes).count() * kHashBytes;
  auto out = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!out) throw py::error_already_set();
  auto* const table = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(out.ptr()));
  const py::gil_scoped_release unlocked;
  fingerprint_regions(view.bytes(), region_bytes, key, schedule, threads, table, &check_signals);
  return out;
}

}  // namespace

void bind_fingerprints(py::module_& module) {
  module.def("fingerprint_schedules", &fingerprint_schedules);
  module.def("region_fingerprints", &region_fingerprints, py::arg("buffer"), py::arg("region_bytes"), py::arg("secret"),
             py::arg("schedule"), py::arg("threads"));
}

}  // namespace looseleaf::dirty_tracker
