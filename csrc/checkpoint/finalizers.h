// Objects that must not clean up when they die, because what they stand for lives on in another process.
#pragma once

#include <pybind11/pybind11.h>

namespace looseleaf::checkpoint {

// CPython runs `__del__` of an object once and notes that in the object: from now on that is noted of `value`. False if
// its type leaves no place for the note; then nothing was changed.
bool mark_finalized(const pybind11::handle& value);

}  // namespace looseleaf::checkpoint
