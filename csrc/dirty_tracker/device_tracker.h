// Which regions of device memory changed since the last save, and their way to the host.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device.h"
#include "pinned_ring.h"

namespace looseleaf::dirty_tracker {

struct DeviceTables {
  // One a payload: the fingerprints of its regions, as fingerprint_regions writes them, and which differ from the last.
  std::vector<std::vector<std::uint8_t>> hashes;
  std::vector<std::vector<std::size_t>> dirty;
};

struct DeviceMove {
  DeviceSpan from;
  std::uint8_t* to;
};

// The caller keeps all memory alive and unwritten during a call. It owns the tables: a save that fails leaves its last ones
// as they were. One call at a time.
class DeviceTracker {
 public:
  DeviceTracker(std::shared_ptr<Device> device, const fingerprint::Key& key, const RingLimits& limits);

  // Fingerprints every region of every payload and compares with `last`, one table a payload; where that has another
  // length, all regions count as dirty. Runs after all work that was on the device before. Throws InvalidInput,
  // DeviceFailure.
  DeviceTables tables(const std::vector<DeviceSpan>& payloads, const std::vector<ConstBytes>& last, std::size_t region_bytes);

  // Which regions of each payload differ from those of the copy in `old`, of the same size, bit by bit: what fingerprints
  // are measured against. Throws as `tables`.
  std::vector<std::vector<std::size_t>> compare(const std::vector<DeviceSpan>& payloads, const std::vector<DeviceSpan>& old,
                                                std::size_t region_bytes);

  // Copies each span to its place on the host; returns when all have arrived. Neighbours go in one transfer, small spans are
  // packed on the device first. Throws DeviceFailure; then any of the places may hold anything.
  void move(const std::vector<DeviceMove>& moves);

  // After a failure that cannot be undone: every later call throws that failure again.
  bool is_poisoned() const { return poison_.has_value(); }

 private:
  template <typename Work>
  auto guarded(Work work);
  void move_large(Drain& drain, std::vector<DeviceMove> moves);
  void move_small(Drain& drain, const std::vector<DeviceMove>& moves);

  std::shared_ptr<Device> device_;
  fingerprint::Key key_;
  RingLimits limits_;
  std::unique_ptr<PinnedSlots> slots_;
  std::optional<DeviceFailure> poison_;
};

}  // namespace looseleaf::dirty_tracker
