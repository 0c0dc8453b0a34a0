#include "system.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace looseleaf::dirty_tracker {
namespace {

// The numbers are part of the kernel's ABI; older C library headers lack them.
constexpr int kMadvPopulateRead = 22;

class TestPage {
 public:
  TestPage() : address_(mmap(nullptr, page_bytes(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~TestPage() {
    if (address_ != MAP_FAILED) munmap(address_, page_bytes());
  }
  void* address() const { return address_ == MAP_FAILED ? nullptr : address_; }

 private:
  void* address_;
};

}  // namespace

SystemFailure::SystemFailure(std::string call_name, std::string call_place, int errno_value)
    : std::runtime_error(call_name + " failed: " + std::strerror(errno_value)),
      call(std::move(call_name)),
      place(std::move(call_place)),
      error(errno_value) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int OwnedFd::release() { return std::exchange(fd_, -1); }

void OwnedFd::reset() {
  // Linux frees the number even when close() reports an error, so a retry could close somebody else's file.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t regular_file_bytes(int fd) {
  struct stat status {};
  LOOSELEAF_CHECK(fstat, fd, &status);
  if (!S_ISREG(status.st_mode)) throw InvalidInput("FILE_KIND_REFUSED", "only regular files and memfds can be mapped");
  return static_cast<std::size_t>(status.st_size);
}

void populate_read(void* address, std::size_t size) {
  if (size == 0) return;
  int result;
  do {
    result = madvise(address, size, kMadvPopulateRead);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return;
  if (errno != EINVAL) throw SystemFailure("madvise", LOOSELEAF_PLACE, errno);
  const volatile std::uint8_t* bytes = static_cast<const volatile std::uint8_t*>(address);
  for (std::size_t at = 0; at < size; at += page_bytes()) static_cast<void>(bytes[at]);
}

bool populate_read_available() {
  const TestPage page;
  return page.address() != nullptr && madvise(page.address(), page_bytes(), kMadvPopulateRead) == 0;
}

}  // namespace looseleaf::dirty_tracker
