// A device of plain memory that works as late as CUDA may: only when somebody waits. And one whose n-th call fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "device.h"
#include "fingerprint_host.h"
#include "region_hash.h"

namespace looseleaf::dirty_tracker {

class CpuDevice : public Device {
 public:
  CpuDevice() = default;
  ~CpuDevice() override { run_until(queued_); }

  // Work of a cell, on a stream of its own: it may run as late as `begin`.
  void queue_cell_work(std::function<void()> work) { cell_work_.push_back(std::move(work)); }

  // What a device does whose context is lost: nothing that was queued happens any more.
  void abandon() { lost_ = true; }

  std::size_t pinned_allocations() const { return pinned_allocations_; }
  std::size_t live_allocations() const { return live_; }
  std::size_t copies_to_host() const { return copies_to_host_; }

  void begin() override {
    for (auto& work : cell_work_) work();
    cell_work_.clear();
  }
  DeviceMemory allocate(std::size_t size) override {
    // Freed in the order of the work, as memory of a stream is.
    ++live_;
    auto* const data = new std::uint8_t[size + 1];
    std::memset(data, 0xab, size + 1);
    return DeviceMemory(data, [this](std::uint8_t* memory) {
      queue([this, memory] {
        delete[] memory;
        --live_;
      }, true);
    });
  }
  DeviceMemory allocate_pinned(std::size_t size) override {
    ++pinned_allocations_;
    return DeviceMemory(new std::uint8_t[size], [](std::uint8_t* memory) { delete[] memory; });
  }
  void copy_to_device(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    queue([to, bytes = std::vector<std::uint8_t>(from, from + size)] { std::copy(bytes.begin(), bytes.end(), to); });
  }
  void copy_to_host(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    ++copies_to_host_;
    queue([=] { std::memcpy(to, from, size); });
  }
  void clear(std::uint8_t* at, std::size_t size) override {
    queue([=] { std::memset(at, 0, size); });
  }
  void fingerprints(const DeviceSpan* spans, std::size_t count, const fingerprint::Key& key,
                    fingerprint::Fingerprint* out) override {
    queue([=, key = key] {
      for (std::size_t i = 0; i < count; ++i) {
        std::uint8_t table[kHashBytes] = {};
        fingerprint_regions({spans[i].data, spans[i].length}, spans[i].length, key, "cuda", 1, table);
        out[i] = {};
        for (unsigned k = 0; k < 8; ++k) {
          out[i].low |= std::uint64_t{table[k]} << (8 * k);
          out[i].high |= std::uint64_t{table[8 + k]} << (8 * k);
        }
      }
    });
  }
  void select(const fingerprint::Fingerprint* fresh, const fingerprint::Fingerprint* last, std::size_t count,
              std::uint32_t* indices, std::uint32_t* found) override {
    // From the last one down: the kernel promises no order.
    queue([=] {
      for (std::size_t i = count; i-- > 0;) {
        if (fresh[i].low != last[i].low || fresh[i].high != last[i].high) indices[(*found)++] = static_cast<std::uint32_t>(i);
      }
    });
  }
  void gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to) override {
    queue([=] {
      for (std::size_t i = 0; i < count; ++i) std::memcpy(to + offsets[i], spans[i].data, spans[i].length);
    });
  }
  void compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed) override {
    queue([=] {
      for (std::size_t i = 0; i < count; ++i) changed[i] = std::memcmp(fresh[i].data, old[i].data, fresh[i].length) != 0;
    });
  }
  std::unique_ptr<DeviceEvent> record() override {
    const std::lock_guard<std::mutex> locked(mutex_);
    return std::make_unique<Event>(*this, queued_);
  }
  void synchronize() override { run_until(queued_); }

 private:
  struct Event : DeviceEvent {
    Event(CpuDevice& of, std::size_t at) : device(of), position(at) {}
    void wait() override { device.run_until(position); }
    CpuDevice& device;
    std::size_t position;
  };

  void queue(std::function<void()> work, bool even_if_lost = false) {
    const std::lock_guard<std::mutex> locked(mutex_);
    work_.push_back([this, work = std::move(work), even_if_lost] {
      if (even_if_lost || !lost_) work();
    });
    ++queued_;
  }
  void run_until(std::size_t position) {
    const std::lock_guard<std::mutex> locked(mutex_);
    for (; done_ < position; ++done_) {
      work_.front()();
      work_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> work_;
  std::atomic<bool> lost_{false};
  std::size_t queued_ = 0;
  std::size_t done_ = 0;
  std::vector<std::function<void()>> cell_work_;
  std::atomic<std::size_t> live_{0};
  std::size_t pinned_allocations_ = 0;
  std::size_t copies_to_host_ = 0;
};

// Passes all calls on, but the one with the number `fails_at`, and after a sticky failure every later one.
class FaultyDevice : public Device {
 public:
  FaultyDevice(std::shared_ptr<CpuDevice> device, std::size_t fails_at, bool sticky)
      : device_(std::move(device)), fails_at_(fails_at), sticky_(sticky) {}

  std::size_t calls() const { return calls_; }

  void begin() override { checked("begin"), device_->begin(); }
  DeviceMemory allocate(std::size_t size) override { return checked("allocate"), device_->allocate(size); }
  DeviceMemory allocate_pinned(std::size_t size) override { return checked("pin"), device_->allocate_pinned(size); }
  void copy_to_device(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    checked("copy_to_device"), device_->copy_to_device(to, from, size);
  }
  void copy_to_host(std::uint8_t* to, const std::uint8_t* from, std::size_t size) override {
    checked("copy_to_host"), device_->copy_to_host(to, from, size);
  }
  void clear(std::uint8_t* at, std::size_t size) override { checked("clear"), device_->clear(at, size); }
  void fingerprints(const DeviceSpan* spans, std::size_t count, const fingerprint::Key& key,
                    fingerprint::Fingerprint* out) override {
    checked("fingerprints"), device_->fingerprints(spans, count, key, out);
  }
  void select(const fingerprint::Fingerprint* fresh, const fingerprint::Fingerprint* last, std::size_t count,
              std::uint32_t* indices, std::uint32_t* found) override {
    checked("select"), device_->select(fresh, last, count, indices, found);
  }
  void gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to) override {
    checked("gather"), device_->gather(spans, offsets, count, to);
  }
  void compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed) override {
    checked("compare"), device_->compare(fresh, old, count, changed);
  }
  std::unique_ptr<DeviceEvent> record() override {
    checked("record");
    return std::make_unique<Event>(*this, device_->record());
  }
  void synchronize() override { checked("synchronize"), device_->synchronize(); }

 private:
  struct Event : DeviceEvent {
    Event(FaultyDevice& of, std::unique_ptr<DeviceEvent> event) : device(of), inner(std::move(event)) {}
    void wait() override { device.checked("wait"), inner->wait(); }
    FaultyDevice& device;
    std::unique_ptr<DeviceEvent> inner;
  };

  void checked(const char* call) {
    const std::size_t number = calls_++;
    if (number == fails_at_ || (sticky_ && number > fails_at_)) {
      if (sticky_) device_->abandon();
      throw DeviceFailure(call, LOOSELEAF_PLACE, 700, "cudaErrorIllegalAddress", "made up", sticky_);
    }
  }

  std::shared_ptr<CpuDevice> device_;
  std::size_t fails_at_;
  bool sticky_;
  std::atomic<std::size_t> calls_{0};
};

}  // namespace looseleaf::dirty_tracker
