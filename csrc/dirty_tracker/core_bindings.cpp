// The module looseleaf.dirty_tracker._core. Each function's contract stands in looseleaf/dirty_tracker/_core.pyi.
#include "core_bindings.h"

#include "parallel.h"
#include "python_errors.h"
#include "region_hash.h"
#include "system.h"

namespace py = pybind11;
namespace dt = looseleaf::dirty_tracker;

PYBIND11_MODULE(_core, module) {
  module.doc() = "Host side of the dirty tracker: region hashes, exact compare, shared and private mappings.";
  py::register_local_exception_translator(dt::translate_error);
  module.attr("BUILT_WITH_CUDA") = LOOSELEAF_BUILT_WITH_CUDA != 0;
  module.attr("HASH_BYTES") = dt::kHashBytes;
  module.attr("HASH_THREADS_MAX") = dt::kThreadsMax;
  module.def("simd_level", &dt::simd_level);
  module.def("populate_read_available", &dt::populate_read_available);
  dt::bind_fingerprints(module);
  dt::bind_hashes(module);
  dt::bind_memory(module);
  dt::bind_tables(module);
}
