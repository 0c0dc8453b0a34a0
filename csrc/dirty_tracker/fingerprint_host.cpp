#include "fingerprint_host.h"

#include <cstring>

#include "fingerprint_tiles.h"
#include "parallel.h"
#include "region_hash.h"

namespace looseleaf::dirty_tracker {
namespace {

using namespace fingerprint;
using RegionFunction = Fingerprint (*)(ConstBytes region, const Key& key);

// The bytes of tile `index`, padded with zeros in `space` if the region ends inside it.
const std::uint8_t* tile_of(ConstBytes region, unsigned index, std::uint8_t (&space)[kTileBytes]) {
  const std::size_t begin = std::size_t{index} * kTileBytes;
  if (region.size - begin >= kTileBytes) return region.data + begin;
  std::memset(space, 0, kTileBytes);
  std::memcpy(space, region.data + begin, region.size - begin);
  return space;
}

// One polynomial in r^kLanes for each lane, all in step; then one in r over the lanes.
template <TileFunction tile_sums>
Fingerprint by_tiles(ConstBytes region, const Key& key) {
  std::uint8_t space[kTileBytes];
  Streams lanes[kLanes] = {};
  Streams nh[kLanes];
  const Streams step = powers(key.r, kLanes);
  for (unsigned tile = tiles_of(region.size); tile-- > 0;) {
    tile_sums(tile_of(region, tile, space), key, nh);
    for (unsigned lane = 0; lane < kLanes; ++lane) add_lane(lanes[lane], step, nh[lane]);
  }
  const Streams r = powers(key.r, 1);
  Streams sums{};
  for (unsigned lane = kLanes; lane-- > 0;) add_lane(sums, r, lanes[lane]);
  return finish(sums, region.size, key);
}

Fingerprint by_cuda_schedule(ConstBytes region, const Key& key) {
  const unsigned tiles = tiles_of(region.size);
  const Streams step = powers(key.r, kLanes * kWarps);
  Streams block{};
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const Streams thread = thread_polynomial(tiles, warp, step, [&](unsigned tile) {
        std::uint8_t space[kTileBytes];
        const std::uint8_t* const data = tile_of(region, tile, space);
        Streams nh{};
        for (unsigned v = 0; v < kVectors; ++v) {
          Vector vector;
          std::memcpy(vector.words, data + (v * kLanes + lane) * kVectorBytes, kVectorBytes);
          add_vector(nh, vector, v, key);
        }
        return nh;
      });
      const Streams shift = powers(key.r, warp * kLanes + lane);
      for (unsigned t = 0; t < kStreams; ++t) {
        block.at[t] = Field::add(block.at[t], Field::multiply(thread.at[t], shift.at[t]));
      }
    }
  }
  return finish(block, region.size, key);
}

struct Schedule {
  const char* name;
  RegionFunction function;
  bool available;
};

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{
#if defined(__x86_64__)
      {"avx512", &by_tiles<tile_avx512>, __builtin_cpu_supports("avx512f") != 0},
      {"avx2", &by_tiles<tile_avx2>, __builtin_cpu_supports("avx2") != 0},
#endif
      {"scalar", &by_tiles<tile_scalar>, true},
      {"emulated512", &by_tiles<tile_emulated512>, true},
      {"cuda", &by_cuda_schedule, true},
  };
  return all;
}

RegionFunction function_of(const std::string& name) {
  for (const Schedule& schedule : schedules()) {
    if (schedule.available && name == schedule.name) return schedule.function;
  }
  throw InvalidInput("SCHEDULE_UNAVAILABLE", "this machine cannot compute fingerprints by '" + name + "'");
}

void write_little_endian(std::uint64_t value, std::uint8_t* out) {
  for (unsigned i = 0; i < 8; ++i) out[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

}  // namespace

std::vector<std::string> fingerprint_schedules() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) {
    if (schedule.available) names.emplace_back(schedule.name);
  }
  return names;
}

void fingerprint_regions(ConstBytes bytes, std::size_t region_bytes, const Key& key, const std::string& schedule,
                         unsigned threads, std::uint8_t* out, const std::function<void()>& poll) {
  const RegionFunction function = function_of(schedule);
  const Regions regions(bytes.size, region_bytes);
  const auto one = [&](std::size_t i) {
    const Fingerprint value = function({bytes.data + regions.begin(i), regions.length(i)}, key);
    write_little_endian(value.low, out + i * kHashBytes);
    write_little_endian(value.high, out + i * kHashBytes + 8);
  };
  parallel_for(regions.count(), threads, one, poll);
}

}  // namespace looseleaf::dirty_tracker
