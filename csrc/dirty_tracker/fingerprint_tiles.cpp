#include "fingerprint_tiles.h"

#include <cstring>

#include "fingerprint_unit.h"

namespace looseleaf::dirty_tracker::fingerprint {
namespace {

// What a 512-bit register does, in plain code.
struct Emulated512 {
  static constexpr unsigned kLanesAtOnce = 4;
  struct Register {
    std::uint64_t parts[8];
  };
  static Register zero() { return {}; }
  static Register load(const std::uint8_t* from) {
    Register out;
    std::memcpy(out.parts, from, sizeof out.parts);
    return out;
  }
  static Register load_key(const std::uint32_t* key) {
    Register out;
    for (unsigned i = 0; i < 8; ++i) std::memcpy(&out.parts[i], key + 2 * (i % 2), sizeof out.parts[i]);
    return out;
  }
  static Register pairs(const Register& data, const Register& key) {
    Register out;
    for (unsigned i = 0; i < 8; ++i) {
      const auto low = static_cast<std::uint32_t>(data.parts[i]) + static_cast<std::uint32_t>(key.parts[i]);
      const auto high = static_cast<std::uint32_t>(data.parts[i] >> 32) + static_cast<std::uint32_t>(key.parts[i] >> 32);
      out.parts[i] = std::uint64_t{low} * high;
    }
    return out;
  }
  static Register add(const Register& a, const Register& b) {
    Register out;
    for (unsigned i = 0; i < 8; ++i) out.parts[i] = a.parts[i] + b.parts[i];
    return out;
  }
  static void store_lane_sums(const Register& from, Streams* lanes, unsigned stream) {
    for (unsigned i = 0; i < kLanesAtOnce; ++i) lanes[i].at[stream] = from.parts[2 * i] + from.parts[2 * i + 1];
  }
  static void prefetch(const std::uint8_t*) {}
};

}  // namespace

void tile_scalar(const std::uint8_t* tile, const Key& key, Streams* sums) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    sums[lane] = {};
    for (unsigned v = 0; v < kVectors; ++v) {
      Vector data;
      std::memcpy(data.words, tile + (v * kLanes + lane) * kVectorBytes, kVectorBytes);
      add_vector(sums[lane], data, v, key);
    }
  }
}

void tile_emulated512(const std::uint8_t* tile, const Key& key, Streams* sums) { tile_by_unit<Emulated512>(tile, key, sums); }

}  // namespace looseleaf::dirty_tracker::fingerprint
