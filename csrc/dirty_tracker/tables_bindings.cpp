#include <pybind11/stl.h>

#include <deque>
#include <string>
#include <tuple>

#include "core_bindings.h"
#include "pagemap.h"
#include "python_buffer.h"
#include "python_errors.h"
#include "region_hash.h"
#include "region_tables.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

struct OpenPagemap {
  Pagemap pagemap;
  PagemapMethod method;
};

PagemapMethod method_of(const std::string& name) {
  for (const PagemapMethod method : {PagemapMethod::kScan, PagemapMethod::kRead}) {
    if (name == method_name(method)) return method;
  }
  throw InvalidInput("PAGEMAP_METHOD_UNKNOWN", "written pages are found by 'scan' or by 'read', not by '" + name + "'");
}

std::pair<std::string, std::string> pagemap_support() {
  const PagemapSupport support = probe_pagemap();
  return {support.method ? method_name(*support.method) : "", support.why_none};
}

std::vector<std::size_t> written_regions(const OpenPagemap& self, std::uintptr_t address, std::size_t size,
                                         std::size_t region_bytes) {
  const py::gil_scoped_release unlocked;
  return self.pagemap.written_regions(address, size, region_bytes, self.method);
}

ConstBytes table_bytes(py::handle object) {
  if (!PyBytes_Check(object.ptr())) throw InvalidInput("HASH_TABLE_MALFORMED", "a table of hashes is of type bytes");
  return {reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(object.ptr())),
          static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
}

// Reads a list of (buffer, last, None or (table, address, size) of its mapping) and holds the buffers. A mapping that is not
// exactly the buffer's memory is none.
class Payloads {
 public:
  Payloads(const py::list& rows, std::size_t region_bytes) {
    payloads_.reserve(rows.size());
    for (const py::handle row : rows) {
      const auto [buffer, last, mapping] = row.cast<std::tuple<py::object, py::object, py::object>>();
      const ConstBytes bytes = buffers_.emplace_back(buffer, PythonBuffer::Access::kRead).bytes();
      TablePayload payload{bytes, table_bytes(last), nullptr};
      if (!mapping.is_none()) {
        const auto [origin, address, size] = mapping.cast<std::tuple<py::object, std::uintptr_t, std::size_t>>();
        const ConstBytes table = table_bytes(origin);
        if (table.size != Regions(size, region_bytes).count() * kHashBytes) {
          throw InvalidInput("HASH_TABLE_MALFORMED", "a mapping's table has one entry for each of its regions");
        }
        if (address == reinterpret_cast<std::uintptr_t>(bytes.data) && size == bytes.size) payload.origin = table.data;
      }
      payloads_.push_back(payload);
    }
  }
  const std::vector<TablePayload>& all() const { return payloads_; }

 private:
  std::deque<PythonBuffer> buffers_;
  std::vector<TablePayload> payloads_;
};

std::vector<std::tuple<py::bytes, std::vector<std::size_t>, std::size_t>> tables(const py::list& rows,
                                                                                std::size_t region_bytes,
                                                                                std::uint64_t seed, unsigned threads,
                                                                                const OpenPagemap* pagemap) {
  const Payloads payloads(rows, region_bytes);
  std::vector<RegionTable> found;
  {
    const py::gil_scoped_release unlocked;
    found = region_tables(payloads.all(), region_bytes, seed, threads, pagemap == nullptr ? nullptr : &pagemap->pagemap,
                          pagemap == nullptr ? PagemapMethod::kScan : pagemap->method, &check_signals);
  }
  std::vector<std::tuple<py::bytes, std::vector<std::size_t>, std::size_t>> out;
  out.reserve(found.size());
  for (RegionTable& table : found) {
    out.emplace_back(py::bytes(reinterpret_cast<const char*>(table.hashes.data()), table.hashes.size()),
                     std::move(table.dirty), table.hashed_regions);
  }
  return out;
}

}  // namespace

void bind_tables(py::module_& module) {
  py::class_<OpenPagemap>(module, "Pagemap")
      .def_static("open", [](const std::string& method) { return OpenPagemap{Pagemap::open(), method_of(method)}; },
                  py::arg("method"))
      .def_static(
          "open_file",
          [](const std::string& path, const std::string& method) {
            return OpenPagemap{Pagemap::open_file(path), method_of(method)};
          },
          py::arg("path"), py::arg("method"))
      .def_property_readonly("is_usable", [](const OpenPagemap& self) { return self.pagemap.is_usable(); })
      .def("written_regions", &written_regions, py::arg("address"), py::arg("size_bytes"), py::arg("region_bytes"));
  module.def("pagemap_support", &pagemap_support);
  module.def("region_tables", &tables, py::arg("payloads"), py::arg("region_bytes"), py::arg("seed"), py::arg("threads"),
             py::arg("pagemap"));
}

}  // namespace looseleaf::dirty_tracker
