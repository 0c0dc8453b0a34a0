// The module looseleaf.dirty_tracker._cuda. Each function's contract stands in looseleaf/dirty_tracker/_cuda.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "cuda_device.h"
#include "cuda_stream.h"
#include "device_tracker.h"
#include "python_key.h"
#include "python_buffer.h"
#include "python_errors.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

void set_device_error(const DeviceFailure& failure) {
  py::dict fields;
  fields["call"] = failure.call;
  fields["place"] = failure.place;
  fields["code"] = failure.code;
  fields["code_name"] = failure.code_name;
  fields["sticky"] = failure.is_sticky;
  switch (failure.code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return set_error("Unsupported", "NO_CUDA_DEVICE", failure.what(), fields);
    case cudaErrorMemoryAllocation:
      return set_error("CapacityExceeded", "OUT_OF_DEVICE_MEMORY", failure.what(), fields);
    default:
      return set_error("Internal", "CUDA_CALL_FAILED", failure.what(), fields);
  }
}

void translate_device_error(std::exception_ptr pointer) {
  try {
    translate_error(pointer);
  } catch (const DeviceFailure& error) {
    set_device_error(error);
  }
}

std::pair<int, std::string> device_state() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return {count, count == 0 ? "no device is visible" : ""};
  // Clears the error, so that the next launch check does not report it.
  static_cast<void>(cudaGetLastError());
  return {0, cudaGetErrorString(result)};
}

using Span = std::pair<std::uintptr_t, std::size_t>;
using Dirty = std::vector<std::vector<std::size_t>>;

const std::uint8_t* pointer_to(std::uintptr_t address) { return reinterpret_cast<const std::uint8_t*>(address); }

std::vector<DeviceSpan> spans_of(const std::vector<Span>& payloads) {
  std::vector<DeviceSpan> out;
  for (const auto& [address, size] : payloads) out.push_back({pointer_to(address), size});
  return out;
}

std::vector<std::tuple<py::bytes, std::vector<std::size_t>>> tables(DeviceTracker& self, const std::vector<Span>& payloads,
                                                                   const std::vector<py::bytes>& last,
                                                                   std::size_t region_bytes) {
  std::vector<ConstBytes> known;
  for (const py::bytes& table : last) {
    const std::string_view text = table;
    known.push_back({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  }
  DeviceTables found;
  {
    const py::gil_scoped_release unlocked;
    found = self.tables(spans_of(payloads), known, region_bytes);
  }
  std::vector<std::tuple<py::bytes, std::vector<std::size_t>>> out;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    out.emplace_back(py::bytes(reinterpret_cast<const char*>(found.hashes[i].data()), found.hashes[i].size()),
                     std::move(found.dirty[i]));
  }
  return out;
}

Dirty compare(DeviceTracker& self, const std::vector<Span>& fresh, const std::vector<Span>& old, std::size_t region_bytes) {
  const py::gil_scoped_release unlocked;
  return self.compare(spans_of(fresh), spans_of(old), region_bytes);
}

void move_to_host(DeviceTracker& self, const std::vector<std::pair<std::uintptr_t, py::object>>& moves) {
  std::deque<PythonBuffer> buffers;
  std::vector<DeviceMove> native;
  for (const auto& [address, buffer] : moves) {
    const MutableBytes to = buffers.emplace_back(buffer, PythonBuffer::Access::kWrite).mutable_bytes();
    native.push_back({{pointer_to(address), to.size}, to.data});
  }
  const py::gil_scoped_release unlocked;
  self.move(native);
}

std::unique_ptr<DeviceTracker> make_tracker(int device, const py::bytes& secret, unsigned slots, std::size_t slot_bytes,
                                            unsigned threads) {
  const fingerprint::Key key = key_of(secret);
  const RingLimits limits{slots, slot_bytes, threads};
  const py::gil_scoped_release unlocked;
  return std::make_unique<DeviceTracker>(open_cuda_device(device), key, limits);
}

}  // namespace
}  // namespace looseleaf::dirty_tracker

PYBIND11_MODULE(_cuda, module) {
  namespace dt = looseleaf::dirty_tracker;
  module.doc() = "Device side of the dirty tracker. Addresses and streams are integers, so that no torch is linked.";
  py::register_local_exception_translator(dt::translate_device_error);
  module.def("device_state", &dt::device_state);
  module.def("device_count", [] { return dt::device_state().first; });
  module.def("device_of", [](std::uintptr_t address) { return dt::device_of(dt::pointer_to(address), "the address"); });
  const dt::RingLimits limits;
  py::class_<dt::DeviceTracker>(module, "DeviceTracker")
      .def(py::init(&dt::make_tracker), py::arg("device"), py::arg("secret"), py::arg("slots") = limits.slots,
           py::arg("slot_bytes") = limits.slot_bytes, py::arg("threads") = limits.threads)
      .def_property_readonly("is_poisoned", &dt::DeviceTracker::is_poisoned)
      .def("tables", &dt::tables, py::arg("payloads"), py::arg("last"), py::arg("region_bytes"))
      .def("compare", &dt::compare, py::arg("new"), py::arg("old"), py::arg("region_bytes"))
      .def("move_to_host", &dt::move_to_host, py::arg("moves"));
}
