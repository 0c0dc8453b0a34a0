// The pickler's question for every object, whether it is stored elsewhere, without a Python frame.
#pragma once

#include <pybind11/pybind11.h>

namespace looseleaf::checkpoint {

// A callable of one object: `ids.get(id(object))`; what it finds it adds to `used`. Holds both.
pybind11::object make_persistent_id(const pybind11::dict& ids, const pybind11::set& used);

}  // namespace looseleaf::checkpoint
