#include "mapping.h"

#include <sys/mman.h>

#include <limits>
#include <string>
#include <utility>

#include "system.h"

namespace looseleaf::dirty_tracker {
namespace {

std::size_t round_up_to_page(std::size_t size) { return (size + page_bytes() - 1) / page_bytes() * page_bytes(); }

[[noreturn]] void reject(std::size_t index, const char* reason, const std::string& what) {
  throw InvalidInput(reason, "part " + std::to_string(index) + " " + what);
}

void check_part(const MappedPart& part, std::size_t index, bool is_last) {
  if (part.length == 0) reject(index, "PART_EMPTY", "is empty");
  if (part.offset % page_bytes() != 0) reject(index, "PART_UNALIGNED", "does not start at a page boundary");
  if (!is_last && part.length % page_bytes() != 0) {
    reject(index, "PART_UNALIGNED", "is not the last and does not end at a page boundary");
  }
  const std::size_t file_bytes = regular_file_bytes(part.fd);
  if (part.offset > file_bytes || part.length > file_bytes - part.offset) {
    // Touching a page past the end of the file would kill the process with SIGBUS.
    reject(index, "PART_OUTSIDE_FILE", "reaches past the end of its file of " + std::to_string(file_bytes) + " bytes");
  }
}

// Neighbours in one file become one part: each mmap costs the process one of its limited number of memory areas.
std::vector<MappedPart> merged(const std::vector<MappedPart>& parts) {
  std::vector<MappedPart> out;
  for (const MappedPart& part : parts) {
    if (!out.empty() && out.back().fd == part.fd && out.back().offset + out.back().length == part.offset) {
      out.back().length += part.length;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

}  // namespace

PrivateMapping::PrivateMapping(const std::vector<MappedPart>& parts) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_part(parts[i], i, i + 1 == parts.size());
    if (parts[i].length > std::numeric_limits<std::size_t>::max() / 2 - total) {
      reject(i, "SIZE_OUT_OF_RANGE", "makes the mapping larger than the address space");
    }
    total += parts[i].length;
  }
  if (total == 0) return;
  const std::vector<MappedPart> runs = merged(parts);
  const std::size_t reserved = round_up_to_page(total);
  // A single run needs no range set aside for it.
  if (runs.size() > 1) {
    // NORESERVE: the pages are shared until written, so they must not count as memory that this process will need.
    void* const base =
        LOOSELEAF_CHECK(mmap, nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = static_cast<std::uint8_t*>(base);
  }
  std::size_t at = 0;
  try {
    for (const MappedPart& run : runs) {
      const int where = data_ == nullptr ? 0 : MAP_FIXED;
      void* const shown = LOOSELEAF_CHECK(mmap, data_ + at, run.length, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_NORESERVE | where, run.fd, static_cast<off_t>(run.offset));
      if (data_ == nullptr) data_ = static_cast<std::uint8_t*>(shown);
      at += run.length;
      ++map_count_;
    }
  } catch (...) {
    if (data_ != nullptr) munmap(data_, reserved);
    throw;
  }
  reserved_ = reserved;
  size_ = total;
}

PrivateMapping::PrivateMapping(PrivateMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      reserved_(std::exchange(other.reserved_, 0)),
      map_count_(std::exchange(other.map_count_, 0)) {}

PrivateMapping::~PrivateMapping() {
  if (data_ != nullptr) munmap(data_, reserved_);
}

void PrivateMapping::populate() const { populate_read(data_, size_); }

}  // namespace looseleaf::dirty_tracker
