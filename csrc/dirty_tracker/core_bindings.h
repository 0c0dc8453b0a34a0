// The parts of the module _core, one per binding file.
#pragma once

#include <pybind11/pybind11.h>

namespace looseleaf::dirty_tracker {

void bind_fingerprints(pybind11::module_& module);
void bind_hashes(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_tables(pybind11::module_& module);

}  // namespace looseleaf::dirty_tracker
