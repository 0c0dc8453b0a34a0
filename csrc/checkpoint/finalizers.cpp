#include "finalizers.h"

#include <cstdint>

namespace looseleaf::checkpoint {
namespace {

#ifndef Py_GIL_DISABLED
// CPython's PyGC_Head, which lies before every object that the garbage collector knows: the lowest bit of its second word
// is the note (Python 3.4 and later; builds without a GIL keep it elsewhere).
struct GcHead {
  std::uintptr_t next;
  std::uintptr_t previous;
};
constexpr std::uintptr_t kFinalized = 1;
#endif

}  // namespace

bool mark_finalized(const pybind11::handle& value) {
#ifdef Py_GIL_DISABLED
  return false;
#else
  PyObject* const object = value.ptr();
  if (!PyObject_IS_GC(object)) return false;
  if (PyObject_GC_IsFinalized(object)) return true;
  GcHead* const head = reinterpret_cast<GcHead*>(object) - 1;
  head->previous |= kFinalized;
  return PyObject_GC_IsFinalized(object) != 0;
#endif
}

}  // namespace looseleaf::checkpoint
