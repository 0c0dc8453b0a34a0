#if defined(__x86_64__)

#include <immintrin.h>

#include "fingerprint_tiles.h"

#pragma GCC target("avx512f")
// The compiler's own header passes registers whose content does not matter.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "fingerprint_unit.h"

namespace looseleaf::dirty_tracker::fingerprint {
namespace {

struct Avx512 {
  static constexpr unsigned kLanesAtOnce = 4;
  using Register = __m512i;
  static Register zero() { return _mm512_setzero_si512(); }
  static Register load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  static Register load_key(const std::uint32_t* key) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(key)));
  }
  static Register pairs(Register data, Register key) {
    const Register keyed = _mm512_add_epi32(data, key);
    return _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  }
  static Register add(Register a, Register b) { return _mm512_add_epi64(a, b); }
  static void store_lane_sums(Register from, Streams* lanes, unsigned stream) {
    alignas(64) std::uint64_t parts[8];
    _mm512_store_si512(parts, from);
    for (unsigned i = 0; i < kLanesAtOnce; ++i) lanes[i].at[stream] = parts[2 * i] + parts[2 * i + 1];
  }
  static void prefetch(const std::uint8_t* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
};

}  // namespace

void tile_avx512(const std::uint8_t* tile, const Key& key, Streams* sums) {
  tile_by_unit<Avx512>(tile, key, sums);
}

}  // namespace looseleaf::dirty_tracker::fingerprint

#endif
