// A C-contiguous view of any Python buffer, held while native code works on it without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "bytes.h"

namespace looseleaf::dirty_tracker {

class PythonBuffer {
 public:
  enum class Access { kRead, kWrite };

  // Throws InvalidInput for an object without a buffer, one that is not C-contiguous, and a read-only one for kWrite.
  PythonBuffer(pybind11::handle object, Access access) {
    const int flags = PyBUF_SIMPLE | (access == Access::kWrite ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
    const bool supports_buffers = PyObject_CheckBuffer(object.ptr()) != 0;
    // The error's own text names the exporter's complaint; errors of a closed object of ours pass unchanged.
    pybind11::error_already_set original;
    if (!supports_buffers) throw InvalidInput("NOT_A_BUFFER", original.what());
    if (original.matches(PyExc_BufferError) || original.matches(PyExc_ValueError)) {
      throw InvalidInput(access == Access::kWrite ? "BUFFER_NOT_WRITABLE" : "BUFFER_NOT_CONTIGUOUS", original.what());
    }
    throw original;
  }
  PythonBuffer(const PythonBuffer&) = delete;
  PythonBuffer& operator=(const PythonBuffer&) = delete;
  ~PythonBuffer() { PyBuffer_Release(&view_); }

  ConstBytes bytes() const { return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)}; }
  MutableBytes mutable_bytes() const {
    return {static_cast<std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace looseleaf::dirty_tracker
