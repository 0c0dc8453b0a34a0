#include "region_hash.h"

#include <cstring>

#include "parallel.h"

// On x86 the library's own dispatcher picks AVX-512, AVX2 or SSE2 when the module loads, so one build runs everywhere.
#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "../third_party/xxhash/xxh_x86dispatch.c"
#pragma GCC diagnostic pop
#else
#define XXH_INLINE_ALL
#include "../third_party/xxhash/xxhash.h"
#endif

namespace looseleaf::dirty_tracker {
namespace {

XXH128_hash_t raw_hash(const void* data, std::size_t size, std::uint64_t seed) {
#if defined(__x86_64__)
  return XXH3_128bits_withSeed_dispatch(data, size, seed);
#else
  return XXH3_128bits_withSeed(data, size, seed);
#endif
}

void write_hash(const std::uint8_t* data, std::size_t size, std::uint64_t seed, std::uint8_t* out) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, raw_hash(data, size, seed));
  static_assert(sizeof(canonical.digest) == kHashBytes);
  std::memcpy(out, canonical.digest, kHashBytes);
}

}  // namespace

Hash128 hash128(ConstBytes bytes, std::uint64_t seed) {
  Hash128 out;
  write_hash(bytes.data, bytes.size, seed, out.data());
  return out;
}

void hash_regions(ConstBytes bytes, std::size_t region_bytes, std::uint64_t seed, unsigned threads, std::uint8_t* out,
                  const std::function<void()>& poll) {
  const Regions regions(bytes.size, region_bytes);
  const auto hash_one = [&](std::size_t i) {
    write_hash(bytes.data + regions.begin(i), regions.length(i), seed, out + i * kHashBytes);
  };
  parallel_for(regions.count(), threads, hash_one, poll);
}

std::vector<std::size_t> changed_hashes(ConstBytes fresh, ConstBytes old) {
  if (fresh.size % kHashBytes != 0 || old.size % kHashBytes != 0) {
    throw InvalidInput("HASH_TABLE_MALFORMED", "a table of hashes is a multiple of 16 bytes long");
  }
  std::vector<std::size_t> changed;
  for (std::size_t at = 0; at < fresh.size; at += kHashBytes) {
    if (at >= old.size || std::memcmp(fresh.data + at, old.data + at, kHashBytes) != 0) changed.push_back(at / kHashBytes);
  }
  return changed;
}

const char* simd_level() {
#if defined(__x86_64__)
  static const int level = XXH_featureTest();
  return level == XXH_AVX512 ? "avx512" : level == XXH_AVX2 ? "avx2" : "sse2";
#elif XXH_VECTOR == XXH_NEON
  return "neon";
#elif XXH_VECTOR == XXH_SVE
  return "sve";
#else
  return "scalar";
#endif
}

}  // namespace looseleaf::dirty_tracker
