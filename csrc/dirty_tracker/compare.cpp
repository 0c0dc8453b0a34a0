#include "compare.h"

#include <cstring>

namespace looseleaf::dirty_tracker {

std::vector<std::size_t> compare_regions(ConstBytes fresh, ConstBytes old, std::size_t region_bytes) {
  if (fresh.size != old.size) {
    throw InvalidInput("LENGTHS_DIFFER", "compared buffers must be of equal length, not " + std::to_string(fresh.size) +
                                             " and " + std::to_string(old.size) + " bytes");
  }
  const Regions regions(fresh.size, region_bytes);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < regions.count(); ++i) {
    const std::size_t at = regions.begin(i);
    if (std::memcmp(fresh.data + at, old.data + at, regions.length(i)) != 0) changed.push_back(i);
  }
  return changed;
}

}  // namespace looseleaf::dirty_tracker
