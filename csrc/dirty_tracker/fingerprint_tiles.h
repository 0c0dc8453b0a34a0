// NH sums of one whole tile, by vector unit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fingerprint.h"

namespace looseleaf::dirty_tracker::fingerprint {

// Writes the sums of each lane. `tile` has kTileBytes bytes and any alignment. What lies a tile before it may be prefetched.
using TileFunction = void (*)(const std::uint8_t* tile, const Key& key, Streams* sums);

void tile_scalar(const std::uint8_t* tile, const Key& key, Streams* sums);
// The loop of AVX-512 over plain arrays, so that it is tested on machines without that unit.
void tile_emulated512(const std::uint8_t* tile, const Key& key, Streams* sums);
#if defined(__x86_64__)
void tile_avx2(const std::uint8_t* tile, const Key& key, Streams* sums);
void tile_avx512(const std::uint8_t* tile, const Key& key, Streams* sums);
#endif

}  // namespace looseleaf::dirty_tracker::fingerprint
