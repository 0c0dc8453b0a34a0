// The native code without Python, for the sanitizers: `make native-test`. What it computes is checked by tests/dirty_tracker
// against numpy and xxhash; here it is odd sizes, unaligned starts, exact ends of buffers, threads and lifetimes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "compare.h"
#include "expect.h"
#include "mapping.h"
#include "memory.h"
#include "pagemap.h"
#include "parallel.h"
#include "region_hash.h"
#include "region_tables.h"
#include "system.h"

namespace dt = looseleaf::dirty_tracker;

namespace {

// A heap block of exactly `size` bytes, so that the address sanitizer sees any access past its end.
struct Block {
  explicit Block(std::size_t size_bytes, unsigned seed = 1) : data(new std::uint8_t[size_bytes]), size(size_bytes) {
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
  }
  dt::ConstBytes from(std::size_t offset) const { return {data.get() + offset, size - offset}; }
  std::unique_ptr<std::uint8_t[]> data;
  std::size_t size;
};

std::vector<std::uint8_t> table_of(dt::ConstBytes bytes, std::size_t region_bytes, unsigned threads) {
  std::vector<std::uint8_t> table(dt::Regions(bytes.size, region_bytes).count() * dt::kHashBytes);
  dt::hash_regions(bytes, region_bytes, 3, threads, table.data());
  return table;
}

dt::ConstBytes view(const std::vector<std::uint8_t>& bytes) { return {bytes.data(), bytes.size()}; }

void test_hashes_of_odd_sizes_and_starts() {
  for (const std::size_t size : {0, 1, 3, 16, 17, 128, 129, 240, 241, 1023, 1024, 4097, 70001}) {
    const Block block(size + 7);
    for (const std::size_t offset : {0, 1, 7}) {
      const auto one = table_of(block.from(offset), 1000, 1);
      EXPECT(one == table_of(block.from(offset), 1000, 5));
      EXPECT(one.size() == (size + 7 - offset + 999) / 1000 * 16);
    }
  }
  EXPECT_THROWS(dt::InvalidInput, table_of({}, 0, 1));
  EXPECT_THROWS(dt::InvalidInput, table_of({}, 1, 0));
  EXPECT_THROWS(dt::InvalidInput, table_of({}, 1, dt::kThreadsMax + 1));
}

void test_changes_by_hash_and_by_compare_agree() {
  Block fresh(10'001);
  const Block old(10'001);
  for (const std::size_t at : {0, 999, 1000, 5000, 10'000}) fresh.data[at] ^= 0x40;
  const std::vector<std::size_t> expected{0, 1, 5, 10};
  EXPECT(dt::compare_regions(fresh.from(0), old.from(0), 1000) == expected);
  EXPECT(dt::changed_hashes(view(table_of(fresh.from(0), 1000, 2)), view(table_of(old.from(0), 1000, 1))) == expected);
  EXPECT_THROWS(dt::InvalidInput, dt::compare_regions(fresh.from(0), old.from(1), 1000));
  EXPECT_THROWS(dt::InvalidInput, dt::changed_hashes(fresh.from(0), {}));
}

void test_copies_stay_inside_their_buffers() {
  Block to(100), from(50);
  const dt::MutableBytes target{to.data.get(), to.size};
  dt::copy_bytes(target, 50, from.from(0), 0, 50);
  EXPECT(std::equal(from.data.get(), from.data.get() + 50, to.data.get() + 50));
  dt::copy_bytes(target, 100, from.from(0), 50, 0);
  dt::copy_bytes({}, 0, {}, 0, 0);
  EXPECT_THROWS(dt::InvalidInput, dt::copy_bytes(target, 51, from.from(0), 0, 50));
  EXPECT_THROWS(dt::InvalidInput, dt::copy_bytes(target, 0, from.from(0), SIZE_MAX, 2));
  EXPECT_THROWS(dt::InvalidInput, dt::copy_bytes(target, 0, from.from(0), 1, SIZE_MAX));
}

void test_segments_and_mappings_own_their_memory() {
  const std::size_t page = dt::page_bytes();
  auto segment = dt::SharedSegment::create("native-test", 4 * page);
  for (std::size_t i = 0; i < 4; ++i) segment.data()[i * page] = static_cast<std::uint8_t>(i + 1);
  dt::OwnedFd readonly = segment.readonly_fd();
  EXPECT_THROWS(dt::SystemFailure, dt::SharedSegment::open_fd(readonly.get(), page, true));
  dt::PrivateMapping mapping({{readonly.get(), 2 * page, page}, {readonly.get(), 0, page}, {readonly.get(), page, 1}});
  readonly.reset();
  EXPECT(mapping.map_count() == 2 && mapping.size() == 2 * page + 1);
  EXPECT(mapping.data()[0] == 3 && mapping.data()[page] == 1 && mapping.data()[2 * page] == 2);
  mapping.populate();
  mapping.data()[0] = 99;
  EXPECT(segment.data()[2 * page] == 3);
  const dt::PrivateMapping moved(std::move(mapping));
  EXPECT(moved.data()[0] == 99 && mapping.data() == nullptr);
  segment.punch_hole(0, page);
  EXPECT(segment.data()[0] == 0 && moved.data()[page] == 0);
}

void test_refused_mappings_leave_nothing_mapped() {
  const auto segment = dt::SharedSegment::create("native-test", dt::page_bytes());
  EXPECT_THROWS(dt::InvalidInput, dt::PrivateMapping({{segment.fd(), 0, dt::page_bytes() + 1}}));
  EXPECT_THROWS(dt::InvalidInput, dt::PrivateMapping({{segment.fd(), SIZE_MAX - dt::page_bytes() + 1, 1}}));
  EXPECT_THROWS(dt::SystemFailure, dt::PrivateMapping({{-1, 0, 1}}));
  EXPECT_THROWS(dt::SystemFailure, dt::SharedSegment::open_fd(-1, 1, false));
  EXPECT_THROWS(dt::InvalidInput, dt::SharedSegment::create("native-test", 0));
}

void test_tables_hash_written_regions_only() {
  const std::size_t page = dt::page_bytes();
  auto segment = dt::SharedSegment::create("native-test", 600 * page);
  for (std::size_t i = 0; i < segment.size(); i += 8) segment.data()[i] = static_cast<std::uint8_t>(i >> 3);
  const dt::PrivateMapping mapping({{segment.fd(), 0, 600 * page - 5}});
  const dt::ConstBytes bytes{mapping.data(), mapping.size()};
  const auto origin = table_of(bytes, page, 1);
  // More runs of written pages than one call of the kernel returns.
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < 600; i += 2) written.push_back(i);
  for (const std::size_t i : written) mapping.data()[i * page] ^= 1;
  const auto support = dt::probe_pagemap();
  if (!support.method) return;
  const auto pagemap = dt::Pagemap::open();
  for (const auto method : {dt::PagemapMethod::kRead, *support.method}) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data);
    EXPECT(pagemap.written_regions(address, bytes.size, page, method) == written);
    EXPECT(pagemap.written_regions(address, bytes.size, 2 * page, method).size() == 300);
    const auto tables =
        dt::region_tables({{bytes, view(origin), origin.data()}, {bytes, {}, nullptr}}, page, 3, 3, &pagemap, method, {});
    EXPECT(tables[0].dirty == written && tables[0].hashed_regions == written.size());
    EXPECT(tables[0].hashes == tables[1].hashes && tables[1].hashed_regions == 600 && tables[1].dirty.size() == 600);
  }
}

void test_parallel_work_stops_at_the_first_error() {
  struct Stop {};
  for (const unsigned threads : {1u, 4u}) {
    std::atomic<int> done{0};
    EXPECT_THROWS(Stop, dt::parallel_for(1'000'000, threads, [&](std::size_t i) {
      if (i == 100) throw Stop{};
      ++done;
    }));
    EXPECT(done < 1'000'000);
    const auto slow = [](std::size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
    EXPECT_THROWS(Stop, dt::parallel_for(1'000'000, threads, slow, [] { throw Stop{}; }));
  }
  EXPECT_THROWS(dt::InvalidInput, dt::parallel_for(1, 0, [](std::size_t) {}));
}

}  // namespace

int main() {
  RUN(test_hashes_of_odd_sizes_and_starts);
  RUN(test_changes_by_hash_and_by_compare_agree);
  RUN(test_copies_stay_inside_their_buffers);
  RUN(test_segments_and_mappings_own_their_memory);
  RUN(test_refused_mappings_leave_nothing_mapped);
  RUN(test_tables_hash_written_regions_only);
  RUN(test_parallel_work_stops_at_the_first_error);
  run_fingerprint_tests();
  run_device_tracker_tests();
  std::printf("simd %s\n%d passed, %d failed\n", dt::simd_level(), passed, failed);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
