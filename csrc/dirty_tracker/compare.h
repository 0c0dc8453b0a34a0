// Exact comparison of two buffers by region: the oracle of the fingerprints and the `paranoid` mode.
#pragma once

#include <cstddef>
#include <vector>

#include "bytes.h"

namespace looseleaf::dirty_tracker {

// Indices of the regions of `fresh` whose bits differ from `old`, ascending. Throws InvalidInput unless the sizes are equal.
std::vector<std::size_t> compare_regions(ConstBytes fresh, ConstBytes old, std::size_t region_bytes);

}  // namespace looseleaf::dirty_tracker
