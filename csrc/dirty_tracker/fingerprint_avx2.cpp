#if defined(__x86_64__)

#include <immintrin.h>

#include "fingerprint_tiles.h"

#pragma GCC target("avx2")

#include "fingerprint_unit.h"

namespace looseleaf::dirty_tracker::fingerprint {
namespace {

struct Avx2 {
  static constexpr unsigned kLanesAtOnce = 2;
  using Register = __m256i;
  static Register zero() { return _mm256_setzero_si256(); }
  static Register load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Register load_key(const std::uint32_t* key) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(key)));
  }
  static Register pairs(Register data, Register key) {
    const Register keyed = _mm256_add_epi32(data, key);
    return _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  }
  static Register add(Register a, Register b) { return _mm256_add_epi64(a, b); }
  static void store_lane_sums(Register from, Streams* lanes, unsigned stream) {
    alignas(32) std::uint64_t parts[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), from);
    for (unsigned i = 0; i < kLanesAtOnce; ++i) lanes[i].at[stream] = parts[2 * i] + parts[2 * i + 1];
  }
  static void prefetch(const std::uint8_t* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
};

}  // namespace

void tile_avx2(const std::uint8_t* tile, const Key& key, Streams* sums) {
  tile_by_unit<Avx2>(tile, key, sums);
}

}  // namespace looseleaf::dirty_tracker::fingerprint

#endif
