// Everything above the kernels, on a device of plain memory: tables, the ring, order, and a failure of each single call.
#include "device_tracker.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "cpu_device.h"
#include "expect.h"

namespace dt = looseleaf::dirty_tracker;
namespace fp = looseleaf::dirty_tracker::fingerprint;

namespace {

constexpr std::size_t kRegionBytes = 40'000;
constexpr dt::RingLimits kSmallRing{3, 256 << 10, 4};
const fp::Key kKey = fp::expand_key({7});

using Bytes = std::vector<std::uint8_t>;

// Payloads of many sizes, each in a block of exactly its size.
struct State {
  explicit State(unsigned seed = 1) {
    std::mt19937 random(seed);
    for (const std::size_t size : {0, 1, 17, 39'999, 40'000, 40'001, 300'000, 1'000'003}) {
      Bytes& data = payloads.emplace_back(size);
      for (auto& byte : data) byte = static_cast<std::uint8_t>(random());
    }
  }
  std::vector<dt::DeviceSpan> spans() const {
    std::vector<dt::DeviceSpan> out;
    for (const Bytes& data : payloads) out.push_back({data.data(), data.size()});
    return out;
  }
  std::vector<Bytes> tables() const {
    std::vector<Bytes> out;
    for (const Bytes& data : payloads) {
      Bytes& table = out.emplace_back(dt::Regions(data.size(), kRegionBytes).count() * dt::kHashBytes);
      dt::fingerprint_regions({data.data(), data.size()}, kRegionBytes, kKey, "scalar", 1, table.data());
    }
    return out;
  }
  std::vector<Bytes> payloads;
};

std::vector<dt::ConstBytes> views(const std::vector<Bytes>& tables) {
  std::vector<dt::ConstBytes> out;
  for (const Bytes& table : tables) out.push_back({table.data(), table.size()});
  return out;
}

// The target of a move of every payload, in pieces of various sizes.
struct Target {
  explicit Target(const State& state, unsigned seed = 3) {
    std::mt19937 random(seed);
    for (const Bytes& data : state.payloads) {
      Bytes& place = places.emplace_back(data.size());
      for (std::size_t at = 0; at < data.size();) {
        const std::size_t wanted = std::size_t{1} << (random() % 20);
        const std::size_t length = std::min(wanted, data.size() - at);
        moves.push_back({{data.data() + at, length}, place.data() + at});
        at += length;
      }
    }
    std::shuffle(moves.begin(), moves.end(), random);
  }
  std::vector<Bytes> places;
  std::vector<dt::DeviceMove> moves;
};

void test_tables_equal_the_hosts_and_name_what_changed() {
  State state;
  const auto device = std::make_shared<dt::CpuDevice>();
  dt::DeviceTracker tracker(device, kKey, kSmallRing);
  const auto first = tracker.tables(state.spans(), std::vector<dt::ConstBytes>(8), kRegionBytes);
  EXPECT(first.hashes == state.tables());
  for (std::size_t i = 0; i < 8; ++i) EXPECT(first.dirty[i].size() * dt::kHashBytes == first.hashes[i].size());
  state.payloads[1][0] ^= 1;
  state.payloads[6][79'999] ^= 1;
  state.payloads[6][80'000] ^= 1;
  state.payloads[7][1'000'002] ^= 0x80;
  const auto second = tracker.tables(state.spans(), views(first.hashes), kRegionBytes);
  EXPECT(second.hashes == state.tables());
  EXPECT(second.dirty == std::vector<std::vector<std::size_t>>{{}, {0}, {}, {}, {}, {}, {1, 2}, {25}});
  EXPECT(device->live_allocations() == 0 || (device->synchronize(), device->live_allocations() == 0));
  EXPECT(tracker.tables({}, {}, kRegionBytes).hashes.empty());
  EXPECT_THROWS(dt::InvalidInput, tracker.tables(state.spans(), {}, kRegionBytes));
  EXPECT_THROWS(dt::InvalidInput, tracker.tables(state.spans(), views(first.hashes), 0));
  EXPECT_THROWS(dt::InvalidInput, tracker.tables(state.spans(), views(first.hashes), dt::kSpanBytesMax + 1));
}

void test_tables_see_work_that_other_streams_hold() {
  State state;
  const auto device = std::make_shared<dt::CpuDevice>();
  dt::DeviceTracker tracker(device, kKey, kSmallRing);
  const auto last = state.tables();
  device->queue_cell_work([&] { state.payloads[4][5] ^= 1; });
  EXPECT(tracker.tables(state.spans(), views(last), kRegionBytes).dirty[4] == std::vector<std::size_t>{0});
  Target target(state);
  device->queue_cell_work([&] { state.payloads[4][6] ^= 1; });
  tracker.move(target.moves);
  EXPECT(target.places == state.payloads);
}

void test_moves_of_any_sizes_arrive_through_a_short_ring() {
  const State state;
  for (const dt::RingLimits limits : {dt::RingLimits{1, 256 << 10, 1}, kSmallRing, dt::RingLimits{4, 4 << 20, 7}}) {
    const auto device = std::make_shared<dt::CpuDevice>();
    dt::DeviceTracker tracker(device, kKey, limits);
    for (unsigned round = 0; round < 5; ++round) {
      Target target(state, round);
      tracker.move(target.moves);
      EXPECT(target.places == state.payloads);
    }
    EXPECT(device->pinned_allocations() == limits.slots);
    tracker.move({});
  }
  EXPECT_THROWS(dt::InvalidInput, dt::DeviceTracker(std::make_shared<dt::CpuDevice>(), kKey, {1, 1000, 1}));
  EXPECT_THROWS(dt::InvalidInput, dt::DeviceTracker(std::make_shared<dt::CpuDevice>(), kKey, {4, 1 << 20, 0}));
}

// An event that tells that somebody waited for it.
struct Noticed : dt::DeviceEvent {
  explicit Noticed(std::atomic<bool>& to_set) : waited(to_set) {}
  void wait() override { waited = true; }
  std::atomic<bool>& waited;
};

void test_a_full_ring_holds_the_producer() {
  const dt::RingLimits standard;
  EXPECT(standard.slots == 4 && standard.slot_bytes == 64 << 20 && standard.threads >= 4);
  dt::CpuDevice device;
  const dt::PinnedSlots slots(device, {2, 256 << 10, 3});
  dt::Drain drain(slots, 3);
  const std::size_t first = drain.take_slot(), second = drain.take_slot();
  EXPECT(first != second);
  slots.at(first)[7] = 42;
  std::atomic<bool> landed{false};
  std::uint8_t place = 0;
  std::size_t third = slots.count();
  bool was_landed = false;
  std::thread producer([&] {
    third = drain.take_slot();
    was_landed = landed;
  });
  drain.hand_in(first, std::make_unique<Noticed>(landed), {{7, &place, 1}});
  producer.join();
  EXPECT(third == first && was_landed && place == 42);
  std::atomic<bool> others{false};
  for (const std::size_t slot : {second, third}) drain.hand_in(slot, std::make_unique<Noticed>(others), {{0, &place, 1}});
  drain.finish();
}

void test_neighbours_go_in_one_transfer() {
  const Bytes data(1'200'000, 9);
  Bytes place(data.size());
  const auto device = std::make_shared<dt::CpuDevice>();
  dt::DeviceTracker tracker(device, kKey, {4, 4 << 20, 2});
  std::vector<dt::DeviceMove> moves;
  for (std::size_t at = 0; at < data.size(); at += 300'000) moves.push_back({{data.data() + at, 300'000}, place.data() + at});
  tracker.move(moves);
  EXPECT(place == data);
  EXPECT(device->copies_to_host() == 1);
  // A gap in the source, and the other order.
  moves.erase(moves.begin() + 1);
  std::swap(moves[0], moves[1]);
  tracker.move(moves);
  EXPECT(device->copies_to_host() == 1 + 3);
}

void test_compare_names_exactly_what_differs() {
  State state;
  const State old;
  dt::DeviceTracker tracker(std::make_shared<dt::CpuDevice>(), kKey, kSmallRing);
  const std::vector<std::vector<std::size_t>> nothing(8);
  EXPECT(tracker.compare(state.spans(), old.spans(), kRegionBytes) == nothing);
  state.payloads[3][39'998] ^= 1;
  state.payloads[7][40'000] ^= 1;
  EXPECT(tracker.compare(state.spans(), old.spans(), kRegionBytes) ==
         std::vector<std::vector<std::size_t>>{{}, {}, {}, {0}, {}, {}, {}, {1}});
  EXPECT_THROWS(dt::InvalidInput, tracker.compare(state.spans(), {}, kRegionBytes));
}

// Fails each call of a save in turn. After a failure that passes, the same tracker saves rightly; after a sticky one every
// call throws without touching the device.
void test_each_failing_call_is_reported_and_poisons_if_sticky() {
  const State state;
  const auto save = [&](dt::DeviceTracker& tracker) {
    const auto found = tracker.tables(state.spans(), std::vector<dt::ConstBytes>(8), kRegionBytes);
    EXPECT(tracker.compare(state.spans(), state.spans(), kRegionBytes) == std::vector<std::vector<std::size_t>>(8));
    Target target(state);
    tracker.move(target.moves);
    EXPECT(found.hashes == state.tables() && target.places == state.payloads);
  };
  for (const bool sticky : {false, true}) {
    std::size_t fails_at = 0;
    for (bool failed_once = true; failed_once; ++fails_at) {
      const auto cpu = std::make_shared<dt::CpuDevice>();
      const auto device = std::make_shared<dt::FaultyDevice>(cpu, fails_at, sticky);
      failed_once = false;
      {
        dt::DeviceTracker tracker(device, kKey, kSmallRing);
        try {
          save(tracker);
        } catch (const dt::DeviceFailure& failure) {
          failed_once = true;
          EXPECT(failure.is_sticky == sticky && failure.code == 700 && !failure.call.empty() && !failure.place.empty());
        }
        EXPECT(tracker.is_poisoned() == (failed_once && sticky));
        if (failed_once && sticky) {
          const std::size_t calls = device->calls();
          EXPECT_THROWS(dt::DeviceFailure, save(tracker));
          EXPECT(device->calls() == calls);
        } else if (failed_once) {
          save(tracker);
        }
      }
      cpu->synchronize();
      EXPECT(cpu->live_allocations() == 0);
      if (fails_at > 10'000) return EXPECT(!"an end of the calls");
    }
    EXPECT(fails_at > 30);
    if (!sticky) std::printf("device tracker: a save fails rightly at each of its %zu calls\n", fails_at - 1);
  }
}

}  // namespace

void run_device_tracker_tests() {
  RUN(test_tables_equal_the_hosts_and_name_what_changed);
  RUN(test_tables_see_work_that_other_streams_hold);
  RUN(test_moves_of_any_sizes_arrive_through_a_short_ring);
  RUN(test_a_full_ring_holds_the_producer);
  RUN(test_neighbours_go_in_one_transfer);
  RUN(test_compare_names_exactly_what_differs);
  RUN(test_each_failing_call_is_reported_and_poisons_if_sticky);
}
