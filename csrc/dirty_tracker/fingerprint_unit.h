// The loop over a tile that the vector units share. Include it behind the `#pragma GCC target` of the unit, which then holds
// for the loop too, and behind all other headers, whose functions must not be compiled for that unit.
#pragma once

#include "fingerprint_tiles.h"

namespace looseleaf::dirty_tracker::fingerprint {

// `Unit` has a Register of kLanesAtOnce lanes, in each of whose 64-bit parts lies one pair of NH: load, load_key (one
// vector's key for all lanes), pairs (the products of keyed pairs), add (64-bit parts), store_lane_sums, prefetch.
// Two registers go side by side: the multiplier's latency would leave one waiting.
template <typename Unit>
void tile_by_unit(const std::uint8_t* tile, const Key& key, Streams* sums) {
  using Register = typename Unit::Register;
  constexpr unsigned kBytes = Unit::kLanesAtOnce * kVectorBytes;
  for (unsigned lane = 0; lane < kLanes; lane += 2 * Unit::kLanesAtOnce) {
    Register first[kStreams];
    Register second[kStreams];
    for (unsigned t = 0; t < kStreams; ++t) first[t] = second[t] = Unit::zero();
    for (unsigned v = 0; v < kVectors; ++v) {
      const std::uint8_t* const at = tile + (v * kLanes + lane) * kVectorBytes;
      // Horner's rule takes the tiles from the last one down; the stride hides that from the processor's own prefetcher.
      Unit::prefetch(at - kTileBytes);
      if constexpr (2 * kBytes > 64) Unit::prefetch(at - kTileBytes + 64);
      const Register data = Unit::load(at);
      const Register next = Unit::load(at + kBytes);
#pragma GCC unroll 4
      for (unsigned t = 0; t < kStreams; ++t) {
        const Register k = Unit::load_key(key.nh + 4 * (v + t));
        first[t] = Unit::add(first[t], Unit::pairs(data, k));
        second[t] = Unit::add(second[t], Unit::pairs(next, k));
      }
    }
    for (unsigned t = 0; t < kStreams; ++t) {
      Unit::store_lane_sums(first[t], sums + lane, t);
      Unit::store_lane_sums(second[t], sums + lane + Unit::kLanesAtOnce, t);
    }
  }
}

}  // namespace looseleaf::dirty_tracker::fingerprint
