// New fingerprint tables of many payloads at once, and what of them differs from the last save's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bytes.h"
#include "pagemap.h"

namespace looseleaf::dirty_tracker {

struct TablePayload {
  ConstBytes bytes;
  // The last save's table, of any length; none for a new payload.
  ConstBytes last;
  // Of a private mapping: the table of the files' bytes. Only regions with written pages are hashed then.
  const std::uint8_t* origin = nullptr;
};

struct RegionTable {
  std::vector<std::uint8_t> hashes;
  std::vector<std::size_t> dirty;
  std::size_t hashed_regions = 0;
};

// One table a payload, in their order; the XXH3-128 of each region. Without `pagemap`, and where it fails, all regions of
// a mapping are hashed too. `poll` as in parallel_for.
std::vector<RegionTable> region_tables(const std::vector<TablePayload>& payloads, std::size_t region_bytes,
                                       std::uint64_t seed, unsigned threads, const Pagemap* pagemap, PagemapMethod method,
                                       const std::function<void()>& poll);

}  // namespace looseleaf::dirty_tracker
