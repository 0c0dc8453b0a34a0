// A run of arena slots mapped side by side as private, writable memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace looseleaf::dirty_tracker {

// [offset, offset + length) of the file behind `fd`. The offset is a multiple of the page size; so is the length of
// every part but the last.
struct MappedPart {
  int fd;
  std::size_t offset;
  std::size_t length;
};

// Owns one address range that shows `parts` one after another. Writes make private copies of the touched pages and never
// reach the files. The descriptors are not needed after the constructor. An empty list of parts maps nothing.
class PrivateMapping {
 public:
  // Throws InvalidInput for a malformed part or one that reaches past its file's end, SystemFailure when the kernel
  // refuses; nothing stays mapped then.
  explicit PrivateMapping(const std::vector<MappedPart>& parts);
  PrivateMapping(PrivateMapping&& other) noexcept;
  PrivateMapping& operator=(PrivateMapping&&) = delete;
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;
  ~PrivateMapping();

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Number of mmap calls that it took, after neighbours in one file were merged.
  std::size_t map_count() const { return map_count_; }

  // Brings all pages into the page tables for reading, without making private copies.
  void populate() const;

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t reserved_ = 0;
  std::size_t map_count_ = 0;
};

}  // namespace looseleaf::dirty_tracker
