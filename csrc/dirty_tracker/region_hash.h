// XXH3-128 of whole buffers and of their regions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bytes.h"

namespace looseleaf::dirty_tracker {

constexpr std::size_t kHashBytes = 16;

// Canonical form: big-endian, high half first, as every XXH3 tool prints it.
using Hash128 = std::array<std::uint8_t, kHashBytes>;

Hash128 hash128(ConstBytes bytes, std::uint64_t seed);

// Writes Regions(bytes.size, region_bytes).count() hashes to `out`, ascending. `threads` and `poll` as in parallel_for.
void hash_regions(ConstBytes bytes, std::size_t region_bytes, std::uint64_t seed, unsigned threads, std::uint8_t* out,
                  const std::function<void()>& poll = nullptr);

// Indices of hashes in `fresh` that `old` lacks or holds with another value, ascending. Both are tables of kHashBytes
// entries; throws InvalidInput for another length.
std::vector<std::size_t> changed_hashes(ConstBytes fresh, ConstBytes old);

// The vector unit that hashing uses on this machine, such as "avx2".
const char* simd_level();

}  // namespace looseleaf::dirty_tracker
