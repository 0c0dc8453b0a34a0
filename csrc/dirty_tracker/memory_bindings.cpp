#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "core_bindings.h"
#include "mapping.h"
#include "memory.h"
#include "python_buffer.h"
#include "python_errors.h"

namespace py = pybind11;

namespace looseleaf::dirty_tracker {
namespace {

// Memory whose buffers Python code may still hold when it is closed: it is unmapped when the last one is gone, so that no
// array ever points to unmapped addresses. All members are guarded by the GIL.
template <typename Memory>
class Exported {
 public:
  Exported(const char* name, Memory memory) : name_(name), memory_(std::move(memory)) {}

  Memory& open() {
    if (closed_) throw ClosedObject(name_);
    return *memory_;
  }
  bool closed() const { return closed_; }
  Memory* close() {
    closed_ = true;
    if (exports_ == 0) memory_.reset();
    return memory_ ? &*memory_ : nullptr;
  }
  void acquire() { ++exports_; }
  void release() {
    if (--exports_ == 0 && closed_) memory_.reset();
  }

 private:
  const char* name_;
  std::optional<Memory> memory_;
  std::size_t exports_ = 0;
  bool closed_ = false;
};

using Mapping = Exported<PrivateMapping>;
using Segment = Exported<SharedSegment>;

bool is_writable(const PrivateMapping&) { return true; }
bool is_writable(const SharedSegment& segment) { return segment.writable(); }

// For the functions that Python calls directly: an exception that leaves one ends the process.
void set_python_error() noexcept {
  try {
    translate_error(std::current_exception());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_SystemError, error.what());
  }
}

// The buffer protocol by hand: pybind11's own has no hook for a buffer's release.
template <typename Memory>
struct BufferProtocol {
  static int get(PyObject* self, Py_buffer* view, int flags) {
    static std::uint8_t nothing;  // A buffer of no bytes still needs an address.
    try {
      auto& object = py::cast<Exported<Memory>&>(py::handle(self));
      const Memory& memory = object.open();
      void* const data = memory.size() == 0 ? &nothing : memory.data();
      const int readonly = is_writable(memory) ? 0 : 1;
      const int result = PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(memory.size()), readonly, flags);
      if (result == 0) object.acquire();
      return result;
    } catch (...) {
      view->obj = nullptr;
      set_python_error();
      return -1;
    }
  }
  static void release(PyObject* self, Py_buffer*) { py::cast<Exported<Memory>&>(py::handle(self)).release(); }
  static void install(PyHeapTypeObject* heap_type) {
    heap_type->as_buffer.bf_getbuffer = &get;
    heap_type->as_buffer.bf_releasebuffer = &release;
    heap_type->ht_type.tp_as_buffer = &heap_type->as_buffer;
  }
};

using PartRow = std::tuple<int, std::size_t, std::size_t>;

Mapping map_parts(const std::vector<PartRow>& parts) {
  std::vector<MappedPart> native;
  native.reserve(parts.size());
  for (const auto& [fd, offset, length] : parts) native.push_back({fd, offset, length});
  const py::gil_scoped_release unlocked;
  return Mapping("MappedRegions", PrivateMapping(native));
}

// `counts` cuts `parts` into the parts of each mapping. Where one fails, none stays mapped.
py::list map_many(const std::vector<PartRow>& parts, const std::vector<std::size_t>& counts) {
  std::vector<PrivateMapping> mapped;
  mapped.reserve(counts.size());
  {
    const py::gil_scoped_release unlocked;
    std::size_t at = 0;
    for (const std::size_t count : counts) {
      if (count > parts.size() - at) throw InvalidInput("PARTS_MISCOUNTED", "there are fewer parts than are counted");
      std::vector<MappedPart> native;
      native.reserve(count);
      for (const std::size_t end = at + count; at < end; ++at) {
        const auto& [fd, offset, length] = parts[at];
        native.push_back({fd, offset, length});
      }
      mapped.emplace_back(native);
    }
    if (at != parts.size()) throw InvalidInput("PARTS_MISCOUNTED", "there are more parts than are counted");
  }
  py::list out;
  for (PrivateMapping& one : mapped) out.append(py::cast(Mapping("MappedRegions", std::move(one))));
  return out;
}

void populate(Mapping& object) {
  const PrivateMapping& mapping = object.open();
  object.acquire();  // Another thread may close the object meanwhile.
  try {
    const py::gil_scoped_release unlocked;
    mapping.populate();
  } catch (...) {
    object.release();
    throw;
  }
  object.release();
}

void copy_into(const py::object& to, std::size_t to_offset, const py::object& from, std::size_t from_offset,
               std::size_t length) {
  const PythonBuffer to_view(to, PythonBuffer::Access::kWrite);
  const PythonBuffer from_view(from, PythonBuffer::Access::kRead);
  const py::gil_scoped_release unlocked;
  copy_bytes(to_view.mutable_bytes(), to_offset, from_view.bytes(), from_offset, length);
}

template <typename Class>
void add_shared_methods(Class& type) {
  using Object = typename Class::type;
  type.def_property_readonly("closed", &Object::closed)
      .def_property_readonly("size_bytes", [](Object& object) { return object.open().size(); })
      .def_property_readonly("address", [](Object& object) { return reinterpret_cast<std::uintptr_t>(object.open().data()); })
      .def_property_readonly("buffer", [](const py::object& self) { return py::memoryview(self); })
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const py::object& self, const py::args&) { self.attr("close")(); });
}

void bind_mapping(py::module_& module) {
  py::class_<Mapping> type(module, "MappedRegions", py::custom_type_setup(&BufferProtocol<PrivateMapping>::install));
  add_shared_methods(type);
  type.def(py::init(&map_parts), py::arg("parts"))
      .def_property_readonly("map_count", [](Mapping& object) { return object.open().map_count(); })
      .def("populate", &populate)
      .def("close", [](Mapping& object) { object.close(); });
}

void bind_segment(py::module_& module) {
  py::class_<Segment> type(module, "Memfd", py::custom_type_setup(&BufferProtocol<SharedSegment>::install));
  add_shared_methods(type);
  type.def_static(
          "create",
          [](const std::string& name, std::size_t size_bytes) { return Segment("Memfd", SharedSegment::create(name, size_bytes)); },
          py::arg("name"), py::arg("size_bytes"))
      .def_static(
          "open_fd",
          [](int fd, std::size_t size_bytes, bool writable) {
            return Segment("Memfd", SharedSegment::open_fd(fd, size_bytes, writable));
          },
          py::arg("fd"), py::arg("size_bytes"), py::arg("writable"))
      .def_property_readonly("fd", [](Segment& object) { return object.open().fd(); })
      .def_property_readonly("writable", [](Segment& object) { return object.open().writable(); })
      .def("readonly_fd", [](Segment& object) { return object.open().readonly_fd().release(); })
      .def("punch_hole", [](Segment& object, std::size_t offset, std::size_t length) { object.open().punch_hole(offset, length); },
           py::arg("offset"), py::arg("length"))
      .def("close", [](Segment& object) {
        if (SharedSegment* const still_mapped = object.close()) still_mapped->close_fd();
      });
}

}  // namespace

void bind_memory(py::module_& module) {
  bind_mapping(module);
  bind_segment(module);
  module.def("map_many", &map_many, py::arg("parts"), py::arg("counts"));
  module.def("copy_into", &copy_into, py::arg("dst"), py::arg("dst_offset"), py::arg("src"), py::arg("src_offset"),
             py::arg("length"));
}

}  // namespace looseleaf::dirty_tracker
