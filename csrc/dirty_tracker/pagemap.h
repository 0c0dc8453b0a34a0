// Which pages of a private file mapping were written since they were mapped, as the process's page tables tell.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "system.h"

namespace looseleaf::dirty_tracker {

// The PAGEMAP_SCAN ioctl (Linux 6.7), or reading the pagemap file, which every kernel has.
enum class PagemapMethod { kScan, kRead };

const char* method_name(PagemapMethod method);

// The page tables of one process. A write to a private file mapping leaves an anonymous page in place of the file's, on
// every way: by the program, by a system call, through a pinned page. So a page that is absent, or present and the
// file's, still shows the file; any other counts as written, also if it holds the old bytes again.
class Pagemap {
 public:
  // Of this process. Throws SystemFailure, EACCES after the process has given up its uid.
  static Pagemap open() { return open_file("/proc/self/pagemap"); }
  static Pagemap open_file(const std::string& path);

  // False after a fork, and when somebody has closed the descriptor meanwhile: its number may be another file's now.
  bool is_usable() const;

  // Indices of the regions of [address, address + size) with a page that was written since it was mapped, ascending. The
  // range is inside one private file mapping. Throws SystemFailure; ClosedObject if !is_usable().
  std::vector<std::size_t> written_regions(std::uintptr_t address, std::size_t size, std::size_t region_bytes,
                                           PagemapMethod method) const;

 private:
  explicit Pagemap(OwnedFd fd);

  OwnedFd fd_;
  pid_t process_;
  dev_t device_;
  ino_t inode_;
};

// What works here, found out on a small mapping whose one written page is known.
struct PagemapSupport {
  std::optional<PagemapMethod> method;
  std::string why_none;
};
PagemapSupport probe_pagemap();

}  // namespace looseleaf::dirty_tracker
