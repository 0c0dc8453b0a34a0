#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>

namespace looseleaf::dirty_tracker {
namespace {

void check_size(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
    throw InvalidInput("SIZE_OUT_OF_RANGE", "a shared segment has at least 1 byte");
  }
}

void check_range(const char* which, std::size_t size, std::size_t offset, std::size_t length) {
  if (offset > size || length > size - offset) {
    throw InvalidInput("RANGE_OUTSIDE_BUFFER", std::string(which) + " range [" + std::to_string(offset) + ", +" +
                                                   std::to_string(length) + ") is outside its " + std::to_string(size) +
                                                   " bytes");
  }
}

}  // namespace

SharedSegment::SharedSegment(OwnedFd fd, std::size_t size_bytes, bool writable)
    : fd_(std::move(fd)), size_(size_bytes), writable_(writable) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  data_ = static_cast<std::uint8_t*>(LOOSELEAF_CHECK(mmap, nullptr, size_, protection, MAP_SHARED, fd_.get(), 0));
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      writable_(other.writable_) {}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, size_);
}

SharedSegment SharedSegment::create(const std::string& name, std::size_t size_bytes) {
  check_size(size_bytes);
  OwnedFd fd(LOOSELEAF_CHECK(memfd_create, name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  LOOSELEAF_CHECK(fchmod, fd.get(), S_IRUSR | S_IWUSR);
  LOOSELEAF_CHECK(ftruncate, fd.get(), static_cast<off_t>(size_bytes));
  // A peer that holds a writable descriptor could else cut the file, and the next access here would be a SIGBUS.
  LOOSELEAF_CHECK(fcntl, fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return SharedSegment(std::move(fd), size_bytes, true);
}

SharedSegment SharedSegment::open_fd(int fd, std::size_t size_bytes, bool writable) {
  check_size(size_bytes);
  OwnedFd own(LOOSELEAF_CHECK(fcntl, fd, F_DUPFD_CLOEXEC, 0));
  const std::size_t file_bytes = regular_file_bytes(own.get());
  if (size_bytes > file_bytes) {
    // Touching a page past the end of the file would kill the process with SIGBUS.
    throw InvalidInput("SIZE_OUT_OF_RANGE", "the file has " + std::to_string(file_bytes) + " bytes, fewer than " +
                                                std::to_string(size_bytes));
  }
  return SharedSegment(std::move(own), size_bytes, writable);
}

OwnedFd SharedSegment::readonly_fd() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  return OwnedFd(LOOSELEAF_CHECK(open, path.c_str(), O_RDONLY | O_CLOEXEC));
}

void SharedSegment::punch_hole(std::size_t offset, std::size_t length) const {
  check_range("punched", size_, offset, length);
  if (offset % page_bytes() != 0 || length % page_bytes() != 0) {
    throw InvalidInput("RANGE_UNALIGNED", "a hole starts and ends at a page boundary");
  }
  if (length == 0) return;
  LOOSELEAF_CHECK(fallocate, fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(length));
}

void copy_bytes(MutableBytes to, std::size_t to_offset, ConstBytes from, std::size_t from_offset, std::size_t length) {
  check_range("destination", to.size, to_offset, length);
  check_range("source", from.size, from_offset, length);
  if (length != 0) std::memmove(to.data + to_offset, from.data + from_offset, length);
}

}  // namespace looseleaf::dirty_tracker
