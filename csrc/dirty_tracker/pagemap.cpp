#include "pagemap.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "bytes.h"
#include "mapping.h"
#include "memory.h"

namespace looseleaf::dirty_tracker {
namespace {

// The numbers are part of the kernel's ABI; older C library headers lack them.
struct ScanArgument {
  std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct ScanRange {
  std::uint64_t start, end, categories;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr std::uint64_t kPageIsFile = 1u << 2;
constexpr std::uint64_t kPageIsPresent = 1u << 3;
constexpr std::uint64_t kPageIsSwapped = 1u << 4;
constexpr std::uint64_t kEntryFile = 1ull << 61;
constexpr std::uint64_t kEntrySwapped = 1ull << 62;
constexpr std::uint64_t kEntryPresent = 1ull << 63;
constexpr std::size_t kEntriesAtOnce = 8192;
constexpr std::size_t kRangesAtOnce = 256;

// Swapped and yet the file's is a page of the file that is on its way from one place in memory to another.
bool is_written(std::uint64_t entry) {
  return (entry & (kEntryPresent | kEntrySwapped)) != 0 && (entry & kEntryFile) == 0;
}

std::uintptr_t page_floor(std::uintptr_t address) { return address / page_bytes() * page_bytes(); }

class Marks {
 public:
  Marks(std::uintptr_t address, std::size_t size, std::size_t region_bytes)
      : address_(address), regions_(size, region_bytes), marked_(regions_.count()) {}

  std::uintptr_t begin() const { return page_floor(address_); }
  std::uintptr_t end() const { return page_floor(address_ + regions_.size + page_bytes() - 1); }

  // Marks all regions of [start, stop), which reaches into the range. Returns where the last of them ends.
  std::uintptr_t mark(std::uintptr_t start, std::uintptr_t stop) {
    const std::size_t from = start > address_ ? start - address_ : 0;
    const std::size_t to = std::min<std::size_t>(stop - address_, regions_.size);
    const std::size_t last = (to - 1) / regions_.region_bytes;
    for (std::size_t i = from / regions_.region_bytes; i <= last; ++i) marked_[i] = true;
    return address_ + regions_.begin(last) + regions_.length(last);
  }

  std::vector<std::size_t> indices() const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < marked_.size(); ++i) {
      if (marked_[i]) found.push_back(i);
    }
    return found;
  }

 private:
  std::uintptr_t address_;
  Regions regions_;
  std::vector<bool> marked_;
};

void scan(int fd, Marks& marks) {
  std::array<ScanRange, kRangesAtOnce> ranges;
  std::uintptr_t at = marks.begin();
  while (at < marks.end()) {
    ScanArgument argument{};
    argument.size = sizeof argument;
    argument.start = at;
    argument.end = marks.end();
    argument.vec = reinterpret_cast<std::uintptr_t>(ranges.data());
    argument.vec_len = ranges.size();
    argument.category_inverted = kPageIsFile;
    argument.category_mask = kPageIsFile;
    argument.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
    argument.return_mask = kPageIsPresent;
    const int found = ioctl(fd, kPagemapScan, &argument);
    // `walk_end` is set then, too, beyond pages that were not told.
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) throw SystemFailure("ioctl(PAGEMAP_SCAN)", LOOSELEAF_PLACE, errno);
    std::uintptr_t next = std::max<std::uintptr_t>(argument.walk_end, at + page_bytes());
    for (int i = 0; i < found; ++i) {
      // No room for more ranges: the rest of the last region need not be looked at, it is marked already.
      next = std::max(next, page_floor(marks.mark(ranges[i].start, ranges[i].end)));
    }
    at = next;
  }
}

void read_entries(int fd, Marks& marks) {
  std::vector<std::uint64_t> entries(kEntriesAtOnce);
  std::uintptr_t at = marks.begin();
  while (at < marks.end()) {
    const std::size_t wanted = std::min(kEntriesAtOnce, (marks.end() - at) / page_bytes());
    const auto place = static_cast<off_t>(at / page_bytes() * sizeof(std::uint64_t));
    const ssize_t got = pread(fd, entries.data(), wanted * sizeof(std::uint64_t), place);
    if (got < 0 && errno == EINTR) continue;
    if (got < static_cast<ssize_t>(sizeof(std::uint64_t))) {
      throw SystemFailure("pread(pagemap)", LOOSELEAF_PLACE, got < 0 ? errno : EIO);
    }
    const std::size_t count = static_cast<std::size_t>(got) / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < count; ++i) {
      if (is_written(entries[i])) marks.mark(at + i * page_bytes(), at + (i + 1) * page_bytes());
    }
    at += count * page_bytes();
  }
}

}  // namespace

const char* method_name(PagemapMethod method) { return method == PagemapMethod::kScan ? "scan" : "read"; }

Pagemap::Pagemap(OwnedFd fd) : fd_(std::move(fd)), process_(getpid()) {
  struct stat status {};
  LOOSELEAF_CHECK(fstat, fd_.get(), &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

Pagemap Pagemap::open_file(const std::string& path) {
  return Pagemap(OwnedFd(LOOSELEAF_CHECK(::open, path.c_str(), O_RDONLY | O_CLOEXEC)));
}

bool Pagemap::is_usable() const {
  struct stat status {};
  return getpid() == process_ && fstat(fd_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

std::vector<std::size_t> Pagemap::written_regions(std::uintptr_t address, std::size_t size, std::size_t region_bytes,
                                                  PagemapMethod method) const {
  Marks marks(address, size, region_bytes);
  if (size == 0) return {};
  if (!is_usable()) throw ClosedObject("the pagemap of this process");
  method == PagemapMethod::kScan ? scan(fd_.get(), marks) : read_entries(fd_.get(), marks);
  return marks.indices();
}

PagemapSupport probe_pagemap() {
  PagemapSupport support;
  try {
    const std::size_t page = page_bytes();
    const auto file = SharedSegment::create("pagemap-probe", 4 * page);
    const PrivateMapping mapping({{file.fd(), 0, 4 * page}});
    // Page 0 stays absent, 1 and 3 are read, 2 is written.
    static_cast<void>(*static_cast<volatile std::uint8_t*>(mapping.data() + page));
    static_cast<void>(*static_cast<volatile std::uint8_t*>(mapping.data() + 3 * page));
    *static_cast<volatile std::uint8_t*>(mapping.data() + 2 * page) = 1;
    const Pagemap pagemap = Pagemap::open();
    const std::vector<std::size_t> expected{2};
    for (const PagemapMethod method : {PagemapMethod::kScan, PagemapMethod::kRead}) {
      try {
        const auto address = reinterpret_cast<std::uintptr_t>(mapping.data());
        if (pagemap.written_regions(address, mapping.size(), page, method) == expected) {
          support.method = method;
          return support;
        }
        support.why_none = "the page tables do not tell written pages";
      } catch (const SystemFailure& error) {
        support.why_none = error.what();
      }
    }
  } catch (const SystemFailure& error) {
    support.why_none = error.what();
  }
  return support;
}

}  // namespace looseleaf::dirty_tracker
