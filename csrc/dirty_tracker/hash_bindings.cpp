#include <pybind11/stl.h>

#include <string>

#include "compare.h"
#include "core_bindings.h"
#include "python_buffer.h"
#include "python_errors.h"
#include "region_hash.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

using Access = PythonBuffer::Access;
// Letting go of the GIL costs more than hashing this much.
constexpr std::size_t kShortBytes = 16 << 10;

py::bytes region_hashes(const py::object& buffer, std::size_t region_bytes, std::uint64_t seed, unsigned threads) {
  const PythonBuffer view(buffer, Access::kRead);
  const std::size_t size = Regions(view.bytes().size, region_bytes).count() * kHashBytes;
  auto out = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!out) throw py::error_already_set();
  auto* const table = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(out.ptr()));
  const py::gil_scoped_release unlocked;
  hash_regions(view.bytes(), region_bytes, seed, threads, table, &check_signals);
  return out;
}

py::bytes whole_hash(const py::object& buffer, std::uint64_t seed) {
  const PythonBuffer view(buffer, Access::kRead);
  Hash128 hash;
  if (view.bytes().size <= kShortBytes) {
    hash = hash128(view.bytes(), seed);
  } else {
    const py::gil_scoped_release unlocked;
    hash = hash128(view.bytes(), seed);
  }
  return py::bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
}

std::vector<std::size_t> changed(const py::object& fresh, const py::object& old) {
  const PythonBuffer fresh_view(fresh, Access::kRead);
  const PythonBuffer old_view(old, Access::kRead);
  const py::gil_scoped_release unlocked;
  return changed_hashes(fresh_view.bytes(), old_view.bytes());
}

std::vector<std::size_t> compare(const py::object& fresh, const py::object& old, std::size_t region_bytes) {
  const PythonBuffer fresh_view(fresh, Access::kRead);
  const PythonBuffer old_view(old, Access::kRead);
  const py::gil_scoped_release unlocked;
  return compare_regions(fresh_view.bytes(), old_view.bytes(), region_bytes);
}

}  // namespace

void bind_hashes(py::module_& module) {
  module.def("region_hashes", &region_hashes, py::arg("buffer"), py::arg("region_bytes"), py::arg("seed"), py::arg("threads"));
  module.def("hash128", &whole_hash, py::arg("buffer"), py::arg("seed"));
  module.def("changed_hashes", &changed, py::arg("new_hashes"), py::arg("old_hashes"));
  module.def("compare_regions", &compare, py::arg("new"), py::arg("old"), py::arg("region_bytes"));
}

}  // namespace looseleaf::dirty_tracker
