// Which number belongs to which address: open addressing, no allocation per entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace looseleaf::checkpoint {

class PointerMap {
 public:
  // The number stored for `key`, or `missing`. Null is no key.
  std::int32_t find(const void* key, std::int32_t missing) const {
    if (slots_.empty()) return missing;
    const Slot& slot = slots_[place_of(key)];
    return slot.key == nullptr ? missing : slot.value;
  }

  bool contains(const void* key) const { return !slots_.empty() && slots_[place_of(key)].key != nullptr; }

  void set(const void* key, std::int32_t value) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(key)];
    if (slot.key == nullptr) ++count_;
    slot = {key, value};
  }

  std::size_t size() const { return count_; }

 private:
  struct Slot {
    const void* key = nullptr;
    std::int32_t value = 0;
  };

  // Objects lie at multiples of 16: the product's upper bits are well spread all the same.
  std::size_t place_of(const void* key) const {
    const auto spread = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key)) * 0x9E3779B97F4A7C15u;
    std::size_t place = static_cast<std::size_t>(spread >> shift_);
    while (slots_[place].key != nullptr && slots_[place].key != key) place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  void grow() {
    std::vector<Slot> old;
    old.swap(slots_);
    slots_.resize(old.empty() ? 64 : 2 * old.size());
    shift_ = 64;
    for (std::size_t size = slots_.size(); size > 1; size /= 2) --shift_;
    for (const Slot& slot : old) {
      if (slot.key != nullptr) slots_[place_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
  unsigned shift_ = 64;
};

}  // namespace looseleaf::checkpoint
