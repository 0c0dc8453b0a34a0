// Pinned host memory in slots, through which device memory reaches its places on the host, drained by several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device.h"

namespace looseleaf::dirty_tracker {

// Copies `size` bytes from `offset` of a slot to `to`.
struct Landing {
  std::size_t offset;
  std::uint8_t* to;
  std::size_t size;
};

struct RingLimits {
  unsigned slots = 4;
  std::size_t slot_bytes = 64 << 20;
  unsigned threads = 4;
};

// The slots' memory; pinning is slow, so it is kept from one save to the next.
class PinnedSlots {
 public:
  PinnedSlots(Device& device, const RingLimits& limits);
  std::size_t count() const { return slots_.size(); }
  std::uint8_t* at(std::size_t slot) const { return slots_[slot].get(); }

 private:
  std::vector<DeviceMemory> slots_;
};

// One run of copies. The producer takes a slot, fills it and hands it in with the event of its copies; the threads wait for
// the event, copy to the landings' places and free the slot. The first failure of a thread ends the run.
class Drain {
 public:
  Drain(const PinnedSlots& slots, unsigned threads);
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;
  // Waits for the threads. Copies of the device into slots that were not handed in may still run.
  ~Drain();

  // Waits until a slot is free: the producer runs no further ahead than the ring is long. Throws what a thread threw.
  std::size_t take_slot();
  void hand_in(std::size_t slot, std::unique_ptr<DeviceEvent> filled, std::vector<Landing> landings);
  // Returns when everything has landed. Throws what a thread threw.
  void finish();

 private:
  struct Batch {
    std::size_t slot;
    std::vector<Landing> landings;
    std::size_t left;  // Guarded by Drain::mutex_.
    std::mutex arrival;
    std::unique_ptr<DeviceEvent> filled;  // Null once it has been waited for. Guarded by `arrival`.
  };
  struct Job {
    std::shared_ptr<Batch> batch;
    std::size_t landing;
  };

  void work();
  void land(const Job& job);
  void throw_failure() const;
  void stop();

  const PinnedSlots& slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::size_t> free_;
  std::exception_ptr failure_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace looseleaf::dirty_tracker
