#include "device_tracker.h"

#include <algorithm>
#include <limits>
#include <string>

#include "region_hash.h"

namespace looseleaf::dirty_tracker {
namespace {

using fingerprint::Fingerprint;

// A transfer of less than this much costs more to start than to pack on the device.
constexpr std::size_t kSmallBytes = 256 << 10;
// Both halves of a fingerprint are below 2^61.
constexpr Fingerprint kNever{~std::uint64_t{0}, ~std::uint64_t{0}};

std::size_t aligned(std::size_t size) {
  return (size + fingerprint::kVectorBytes - 1) / fingerprint::kVectorBytes * fingerprint::kVectorBytes;
}

std::uint64_t read_little_endian(const std::uint8_t* from) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{from[i]} << (8 * i);
  return value;
}

void append_little_endian(std::uint64_t value, std::vector<std::uint8_t>& out) {
  for (unsigned i = 0; i < 8; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

// All regions of all payloads in one row, as the kernels take them.
struct Row {
  std::vector<DeviceSpan> spans;
  // Where each payload's regions begin, and the end.
  std::vector<std::size_t> firsts;

  Row(const std::vector<DeviceSpan>& payloads, std::size_t region_bytes) {
    if (region_bytes > kSpanBytesMax) throw InvalidInput("REGION_BYTES_OUT_OF_RANGE", "a region has at most 2 GiB");
    for (const DeviceSpan& payload : payloads) {
      firsts.push_back(spans.size());
      const Regions regions(payload.length, region_bytes);
      for (std::size_t region = 0; region < regions.count(); ++region) {
        spans.push_back({payload.data + regions.begin(region), regions.length(region)});
      }
    }
    firsts.push_back(spans.size());
    if (spans.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw InvalidInput("REGION_BYTES_OUT_OF_RANGE", "there are more than 2^32 regions: they are too small");
    }
  }

  // Indices into the row, ascending, as indices of each payload's regions.
  std::vector<std::vector<std::size_t>> by_payload(const std::vector<std::uint32_t>& indices) const {
    std::vector<std::vector<std::size_t>> out(firsts.size() - 1);
    auto next = indices.cbegin();
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (; next != indices.cend() && *next < firsts[i + 1]; ++next) out[i].push_back(*next - firsts[i]);
    }
    return out;
  }
};

std::vector<Fingerprint> known_fingerprints(const Row& row, const std::vector<ConstBytes>& tables) {
  std::vector<Fingerprint> out;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const std::size_t count = row.firsts[i + 1] - row.firsts[i];
    const bool is_known = tables[i].size == count * kHashBytes;
    for (std::size_t region = 0; region < count; ++region) {
      const std::uint8_t* const entry = tables[i].data + region * kHashBytes;
      out.push_back(is_known ? Fingerprint{read_little_endian(entry), read_little_endian(entry + 8)} : kNever);
    }
  }
  return out;
}

template <typename T>
std::uint8_t* bytes_of(T* data) {
  return reinterpret_cast<std::uint8_t*>(data);
}
template <typename T>
const std::uint8_t* bytes_of(const T* data) {
  return reinterpret_cast<const std::uint8_t*>(data);
}

template <typename T>
DeviceMemory upload(Device& device, const std::vector<T>& values) {
  const std::size_t size = values.size() * sizeof(T);
  DeviceMemory memory = device.allocate(size);
  device.copy_to_device(memory.get(), bytes_of(values.data()), size);
  return memory;
}

}  // namespace

DeviceTracker::DeviceTracker(std::shared_ptr<Device> device, const fingerprint::Key& key, const RingLimits& limits)
    : device_(std::move(device)), key_(key), limits_(limits) {
  if (limits.slots == 0 || limits.threads == 0 || limits.slot_bytes < kSmallBytes) {
    throw InvalidInput("RING_TOO_SMALL", "a ring has at least one slot of 256 KiB and one thread");
  }
}

template <typename Work>
auto DeviceTracker::guarded(Work work) {
  if (poison_) throw DeviceFailure(*poison_);
  try {
    return work();
  } catch (...) {
    const auto original = std::current_exception();
    const auto poison = [&](const DeviceFailure& failure) {
      if (failure.is_sticky && !poison_) poison_.emplace(failure);
    };
    try {
      // Copies that began still write to the slots and to the caller's memory.
      device_->synchronize();
    } catch (const DeviceFailure& failure) {
      poison(failure);
    }
    try {
      std::rethrow_exception(original);
    } catch (const DeviceFailure& failure) {
      poison(failure);
      throw;
    }
  }
}

DeviceTables DeviceTracker::tables(const std::vector<DeviceSpan>& payloads, const std::vector<ConstBytes>& last,
                                   std::size_t region_bytes) {
  if (payloads.size() != last.size()) throw InvalidInput("HASH_TABLE_MALFORMED", "there is one table for each payload");
  const Row row(payloads, region_bytes);
  const std::vector<Fingerprint> known = known_fingerprints(row, last);
  const std::size_t count = row.spans.size();
  std::vector<Fingerprint> fresh(count);
  std::vector<std::uint32_t> indices(count);
  std::uint32_t found = 0;
  if (count != 0) {
    guarded([&] {
      device_->begin();
      const DeviceMemory spans = upload(*device_, row.spans);
      const DeviceMemory before = upload(*device_, known);
      const DeviceMemory computed = device_->allocate(count * sizeof(Fingerprint));
      const DeviceMemory changed = device_->allocate(count * sizeof(std::uint32_t));
      const DeviceMemory counter = device_->allocate(sizeof found);
      auto* const computed_at = reinterpret_cast<Fingerprint*>(computed.get());
      device_->clear(counter.get(), sizeof found);
      device_->fingerprints(reinterpret_cast<const DeviceSpan*>(spans.get()), count, key_, computed_at);
      device_->select(computed_at, reinterpret_cast<const Fingerprint*>(before.get()), count,
                      reinterpret_cast<std::uint32_t*>(changed.get()), reinterpret_cast<std::uint32_t*>(counter.get()));
      device_->copy_to_host(bytes_of(fresh.data()), computed.get(), count * sizeof(Fingerprint));
      device_->copy_to_host(bytes_of(indices.data()), changed.get(), count * sizeof(std::uint32_t));
      device_->copy_to_host(bytes_of(&found), counter.get(), sizeof found);
      device_->synchronize();
    });
  }
  indices.resize(found);
  std::sort(indices.begin(), indices.end());
  DeviceTables out;
  out.dirty = row.by_payload(indices);
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    auto& hashes = out.hashes.emplace_back();
    for (std::size_t k = row.firsts[i]; k < row.firsts[i + 1]; ++k) {
      append_little_endian(fresh[k].low, hashes);
      append_little_endian(fresh[k].high, hashes);
    }
  }
  return out;
}

std::vector<std::vector<std::size_t>> DeviceTracker::compare(const std::vector<DeviceSpan>& payloads,
                                                             const std::vector<DeviceSpan>& old,
                                                             std::size_t region_bytes) {
  const auto same_length = [](const DeviceSpan& a, const DeviceSpan& b) { return a.length == b.length; };
  if (!std::equal(payloads.begin(), payloads.end(), old.begin(), old.end(), same_length)) {
    throw InvalidInput("LENGTHS_DIFFER", "compared payloads must be as many and as long");
  }
  const Row fresh_row(payloads, region_bytes), old_row(old, region_bytes);
  const std::size_t count = fresh_row.spans.size();
  std::vector<std::uint8_t> changed(count);
  if (count != 0) {
    guarded([&] {
      device_->begin();
      const DeviceMemory fresh = upload(*device_, fresh_row.spans);
      const DeviceMemory before = upload(*device_, old_row.spans);
      const DeviceMemory flags = device_->allocate(count);
      device_->compare(reinterpret_cast<const DeviceSpan*>(fresh.get()), reinterpret_cast<const DeviceSpan*>(before.get()),
                       count, flags.get());
      device_->copy_to_host(changed.data(), flags.get(), count);
      device_->synchronize();
    });
  }
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (changed[i] != 0) indices.push_back(i);
  }
  return fresh_row.by_payload(indices);
}

void DeviceTracker::move(const std::vector<DeviceMove>& moves) {
  std::vector<DeviceMove> large, small;
  for (const DeviceMove& one : moves) {
    if (one.from.length != 0) (one.from.length < kSmallBytes ? small : large).push_back(one);
  }
  if (large.empty() && small.empty()) return;
  guarded([&] {
    if (!slots_) slots_ = std::make_unique<PinnedSlots>(*device_, limits_);
    Drain drain(*slots_, limits_.threads);
    device_->begin();
    move_large(drain, std::move(large));
    move_small(drain, small);
    drain.finish();
  });
}

void DeviceTracker::move_large(Drain& drain, std::vector<DeviceMove> moves) {
  std::reverse(moves.begin(), moves.end());
  while (!moves.empty()) {
    const std::size_t slot = drain.take_slot();
    std::uint8_t* const base = slots_->at(slot);
    std::vector<Landing> landings;
    // The transfer that is being gathered: from `source` on to offset `begin` of the slot.
    const std::uint8_t* source = nullptr;
    std::size_t begin = 0;
    std::size_t used = 0;
    while (!moves.empty() && used < limits_.slot_bytes) {
      DeviceMove& one = moves.back();
      const std::size_t length = std::min<std::size_t>(one.from.length, limits_.slot_bytes - used);
      if (source == nullptr || source + (used - begin) != one.from.data) {
        if (source != nullptr) device_->copy_to_host(base + begin, source, used - begin);
        source = one.from.data;
        begin = used;
      }
      landings.push_back({used, one.to, length});
      used += length;
      if (length == one.from.length) {
        moves.pop_back();
      } else {
        one = {{one.from.data + length, one.from.length - length}, one.to + length};
      }
    }
    device_->copy_to_host(base + begin, source, used - begin);
    drain.hand_in(slot, device_->record(), std::move(landings));
  }
}

void DeviceTracker::move_small(Drain& drain, const std::vector<DeviceMove>& moves) {
  std::size_t total = 0;
  for (const DeviceMove& one : moves) total += aligned(one.from.length);
  DeviceMemory slab;
  for (std::size_t first = 0; first < moves.size();) {
    std::vector<DeviceSpan> spans;
    std::vector<std::uint64_t> offsets;
    std::vector<Landing> landings;
    std::size_t used = 0;
    for (; first < moves.size() && used + moves[first].from.length <= limits_.slot_bytes; ++first) {
      spans.push_back(moves[first].from);
      offsets.push_back(used);
      landings.push_back({used, moves[first].to, moves[first].from.length});
      used += aligned(moves[first].from.length);
    }
    used = std::min(used, limits_.slot_bytes);
    const std::size_t slot = drain.take_slot();
    if (!slab) slab = device_->allocate(std::min(limits_.slot_bytes, total));
    const DeviceMemory places = upload(*device_, offsets);
    const DeviceMemory sources = upload(*device_, spans);
    device_->gather(reinterpret_cast<const DeviceSpan*>(sources.get()),
                    reinterpret_cast<const std::uint64_t*>(places.get()), spans.size(), slab.get());
    device_->copy_to_host(slots_->at(slot), slab.get(), used);
    drain.hand_in(slot, device_->record(), std::move(landings));
  }
}

}  // namespace looseleaf::dirty_tracker
