#include "region_tables.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "parallel.h"
#include "region_hash.h"

namespace looseleaf::dirty_tracker {
namespace {

// Below this much for each, starting a thread costs more than it saves.
constexpr std::size_t kHashBytesPerThread = 16 << 20;
constexpr std::size_t kScanBytesPerThread = 128 << 20;

struct Piece {
  std::size_t payload;
  std::size_t region;
};

unsigned threads_for(std::size_t size, std::size_t bytes_per_thread, unsigned threads) {
  return static_cast<unsigned>(std::min<std::size_t>(threads, size / bytes_per_thread + 1));
}

std::vector<std::size_t> all_regions(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

class Builder {
 public:
  Builder(const std::vector<TablePayload>& payloads, std::size_t region_bytes, std::uint64_t seed)
      : payloads_(payloads), region_bytes_(region_bytes), seed_(seed), tables_(payloads.size()), to_hash_(payloads.size()) {}

  void choose(unsigned threads, const Pagemap* pagemap, PagemapMethod method, const std::function<void()>& poll) {
    std::vector<Piece> pieces;
    std::size_t mapped_bytes = 0;
    const std::size_t step = std::max<std::size_t>(1, kScanBytesPerThread / region_bytes_);
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      const std::size_t count = regions(i).count();
      tables_[i].hashes.resize(count * kHashBytes);
      if (payloads_[i].origin == nullptr || pagemap == nullptr) {
        to_hash_[i] = all_regions(count);
        continue;
      }
      std::copy_n(payloads_[i].origin, count * kHashBytes, tables_[i].hashes.begin());
      mapped_bytes += payloads_[i].bytes.size;
      for (std::size_t region = 0; region < count; region += step) pieces.push_back({i, region});
    }
    std::vector<std::vector<std::size_t>> written(pieces.size());
    const auto scan_one = [&](std::size_t k) { written[k] = written_of(pieces[k], step, *pagemap, method); };
    parallel_for(pieces.size(), threads_for(mapped_bytes, kScanBytesPerThread, threads), scan_one, poll);
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      auto& chosen = to_hash_[pieces[k].payload];
      chosen.insert(chosen.end(), written[k].begin(), written[k].end());
    }
  }

  void hash(unsigned threads, const std::function<void()>& poll) {
    std::vector<Piece> pieces;
    std::size_t size = 0;
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      tables_[i].hashed_regions = to_hash_[i].size();
      for (const std::size_t region : to_hash_[i]) {
        pieces.push_back({i, region});
        size += regions(i).length(region);
      }
    }
    const auto hash_one = [&](std::size_t k) {
      const auto [payload, region] = pieces[k];
      const Regions all = regions(payload);
      const ConstBytes bytes{payloads_[payload].bytes.data + all.begin(region), all.length(region)};
      const Hash128 hash = hash128(bytes, seed_);
      std::copy(hash.begin(), hash.end(), tables_[payload].hashes.begin() + region * kHashBytes);
    };
    parallel_for(pieces.size(), threads_for(size, kHashBytesPerThread, threads), hash_one, poll);
  }

  std::vector<RegionTable> finish() {
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      tables_[i].dirty = changed_hashes({tables_[i].hashes.data(), tables_[i].hashes.size()}, payloads_[i].last);
    }
    return std::move(tables_);
  }

 private:
  Regions regions(std::size_t payload) const { return {payloads_[payload].bytes.size, region_bytes_}; }

  std::vector<std::size_t> written_of(const Piece& piece, std::size_t step, const Pagemap& pagemap,
                                      PagemapMethod method) const {
    const ConstBytes bytes = payloads_[piece.payload].bytes;
    const Regions all = regions(piece.payload);
    const std::size_t begin = all.begin(piece.region);
    const std::size_t size = std::min(step * region_bytes_, bytes.size - begin);
    std::vector<std::size_t> found;
    try {
      found = pagemap.written_regions(reinterpret_cast<std::uintptr_t>(bytes.data) + begin, size, region_bytes_, method);
    } catch (const SystemFailure&) {
      found = all_regions(Regions(size, region_bytes_).count());
    } catch (const ClosedObject&) {
      found = all_regions(Regions(size, region_bytes_).count());
    }
    for (std::size_t& region : found) region += piece.region;
    return found;
  }

  const std::vector<TablePayload>& payloads_;
  std::size_t region_bytes_;
  std::uint64_t seed_;
  std::vector<RegionTable> tables_;
  std::vector<std::vector<std::size_t>> to_hash_;
};

}  // namespace

std::vector<RegionTable> region_tables(const std::vector<TablePayload>& payloads, std::size_t region_bytes,
                                       std::uint64_t seed, unsigned threads, const Pagemap* pagemap, PagemapMethod method,
                                       const std::function<void()>& poll) {
  check_threads(threads);
  static_cast<void>(Regions(0, region_bytes));
  Builder builder(payloads, region_bytes, seed);
  builder.choose(threads, pagemap, method, poll);
  builder.hash(threads, poll);
  return builder.finish();
}

}  // namespace looseleaf::dirty_tracker
