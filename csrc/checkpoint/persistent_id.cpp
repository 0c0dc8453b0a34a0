#include "persistent_id.h"

namespace py = pybind11;

namespace looseleaf::checkpoint {
namespace {

// `self` is the tuple (ids, used).
PyObject* persistent_id(PyObject* self, PyObject* value) {
  PyTypeObject* const type = Py_TYPE(value);
  // Atoms are stored where they are.
  if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || value == Py_None || type == &PyBool_Type) {
    Py_RETURN_NONE;
  }
  PyObject* const key = PyLong_FromVoidPtr(value);
  if (key == nullptr) return nullptr;
  PyObject* const found = PyDict_GetItemWithError(PyTuple_GET_ITEM(self, 0), key);
  Py_DECREF(key);
  if (found == nullptr) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  Py_INCREF(found);
  if (PySet_Add(PyTuple_GET_ITEM(self, 1), found) != 0) {
    Py_DECREF(found);
    return nullptr;
  }
  return found;
}

PyMethodDef kPersistentId = {"persistent_id", &persistent_id, METH_O, nullptr};

}  // namespace

py::object make_persistent_id(const py::dict& ids, const py::set& used) {
  const py::tuple self = py::make_tuple(ids, used);
  auto made = py::reinterpret_steal<py::object>(PyCFunction_New(&kPersistentId, self.ptr()));
  if (!made) throw py::error_already_set();
  return made;
}

}  // namespace looseleaf::checkpoint
