// Raises the classes of looseleaf/errors.py; shared by the binding files of both modules.
#pragma once

#include <pybind11/pybind11.h>

#include <cerrno>
#include <string>

#include "errors.h"

namespace looseleaf::dirty_tracker {

// Sets the Python error `looseleaf.errors.<class_name>(reason, message, **fields)`.
inline void set_error(const char* class_name, const std::string& reason, const std::string& message,
                      const pybind11::dict& fields = pybind11::dict()) {
  const auto error_class = pybind11::module_::import("looseleaf.errors").attr(class_name);
  PyErr_SetObject(error_class.ptr(), error_class(reason, message, **fields).ptr());
}

inline void set_system_error(const SystemFailure& failure) {
  pybind11::dict fields;
  fields["call"] = failure.call;
  fields["place"] = failure.place;
  fields["errno"] = failure.error;
  fields["errno_name"] = pybind11::module_::import("errno").attr("errorcode").attr("get")(failure.error, "");
  switch (failure.error) {
    case EACCES:
    case EPERM:
      return set_error("Forbidden", "SYSTEM_CALL_REFUSED", failure.what(), fields);
    case ENOMEM:
    case ENOSPC:
      return set_error("CapacityExceeded", "OUT_OF_MEMORY", failure.what(), fields);
    case EMFILE:
    case ENFILE:
      return set_error("CapacityExceeded", "OUT_OF_FILE_DESCRIPTORS", failure.what(), fields);
    case EBADF:
      return set_error("InvalidArgument", "FD_NOT_OPEN", failure.what(), fields);
    default:
      return set_error("Internal", "SYSTEM_CALL_FAILED", failure.what(), fields);
  }
}

// Runs the handlers of signals that arrived, without the GIL held by the caller; throws what they raised, so that a person
// can interrupt long work. Handlers run in the main thread only.
inline void check_signals() {
  const pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

inline void translate_error(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const InvalidInput& error) {
    set_error("InvalidArgument", error.reason, error.what());
  } catch (const ClosedObject& error) {
    set_error("PreconditionFailed", "CLOSED", error.what());
  } catch (const SystemFailure& error) {
    set_system_error(error);
  }
}

}  // namespace looseleaf::dirty_tracker
