// System calls that throw, and what this kernel offers.
#pragma once

#include <cerrno>
#include <cstddef>

#include "errors.h"

namespace looseleaf::dirty_tracker {

// Evaluates to the call's result; throws SystemFailure when it equals `failed`.
template <typename Result>
Result check_call(Result result, Result failed, const char* call, const char* place) {
  if (result == failed) throw SystemFailure(call, place, errno);
  return result;
}

#define LOOSELEAF_CHECK(call, ...) \
  ::looseleaf::dirty_tracker::check_call(call(__VA_ARGS__), decltype(call(__VA_ARGS__))(-1), #call, LOOSELEAF_PLACE)

// An owned file descriptor; closed on destruction.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { reset(); }

  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

std::size_t page_bytes();

// Size of the regular file behind `fd` (a memfd is one). Throws InvalidInput for any other kind of file.
std::size_t regular_file_bytes(int fd);

// Reads one byte of each page of [address, address + size) into the page tables without making private copies.
void populate_read(void* address, std::size_t size);

// Whether MADV_POPULATE_READ (Linux 5.14) works here; `populate_read` touches the pages itself where not.
bool populate_read_available();

}  // namespace looseleaf::dirty_tracker
