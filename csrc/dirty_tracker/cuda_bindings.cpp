// The module looseleaf.dirty_tracker._cuda. Each function's contract stands in looseleaf/dirty_tracker/_cuda.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "cuda_device.h"
#include "device_regions.h"
#include "python_buffer.h"
#include "python_errors.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

void set_cuda_error(const CudaFailure& failure) {
  py::dict fields;
  fields["call"] = failure.call;
  fields["place"] = failure.place;
  fields["code"] = static_cast<int>(failure.code);
  fields["code_name"] = failure.code_name;
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

void translate_cuda_error(std::exception_ptr pointer) {
  try {
    translate_error(pointer);
  } catch (const CudaFailure& error) {
    set_cuda_error(error);
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

const void* device_pointer(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }
cudaStream_t stream_of(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

std::vector<std::size_t> compare(std::uintptr_t fresh, std::uintptr_t old, std::size_t size, std::size_t region_bytes,
                                 std::uintptr_t stream) {
  const py::gil_scoped_release unlocked;
  return compare_device_regions(device_pointer(fresh), device_pointer(old), size, region_bytes, stream_of(stream));
}

std::size_t copy_to_host(std::uintptr_t from, std::size_t size, std::size_t region_bytes,
                         const std::vector<std::size_t>& indices, const py::object& to, std::uintptr_t stream) {
  const PythonBuffer view(to, PythonBuffer::Access::kWrite);
  const py::gil_scoped_release unlocked;
  return copy_device_regions(device_pointer(from), size, region_bytes, indices, view.mutable_bytes(), stream_of(stream));
}

}  // namespace
}  // namespace looseleaf::dirty_tracker

PYBIND11_MODULE(_cuda, module) {
  namespace dt = looseleaf::dirty_tracker;
  module.doc() = "Device side of the dirty tracker. Addresses and streams are integers, so that no torch is linked.";
  py::register_local_exception_translator(dt::translate_cuda_error);
  module.def("device_state", &dt::device_state);
  module.def("device_count", [] { return dt::device_state().first; });
  module.def("compare_regions", &dt::compare, py::arg("new_ptr"), py::arg("old_ptr"), py::arg("size_bytes"),
             py::arg("region_bytes"), py::arg("stream") = 0);
  module.def("copy_regions_to_host", &dt::copy_to_host, py::arg("src_ptr"), py::arg("size_bytes"), py::arg("region_bytes"),
             py::arg("indices"), py::arg("dst"), py::arg("stream") = 0);
}
