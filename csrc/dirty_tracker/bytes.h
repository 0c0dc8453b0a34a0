// Plain views of memory, and the division of a view into regions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "errors.h"

namespace looseleaf::dirty_tracker {

struct ConstBytes {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

struct MutableBytes {
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Region i covers [i * region_bytes, min((i + 1) * region_bytes, size)).
struct Regions {
  Regions(std::size_t size_bytes, std::size_t region_size_bytes) : size(size_bytes), region_bytes(region_size_bytes) {
    if (region_bytes == 0) throw InvalidInput("REGION_BYTES_OUT_OF_RANGE", "region_bytes must be at least 1");
  }
  std::size_t count() const { return size / region_bytes + (size % region_bytes != 0); }
  std::size_t begin(std::size_t index) const { return index * region_bytes; }
  std::size_t length(std::size_t index) const { return std::min(region_bytes, size - begin(index)); }

  std::size_t size;
  std::size_t region_bytes;
};

}  // namespace looseleaf::dirty_tracker
