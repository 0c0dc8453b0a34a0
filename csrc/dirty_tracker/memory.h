// Shared memory segments and copies between buffers.
#pragma once

#include <cstddef>
#include <string>

#include "bytes.h"
#include "system.h"

namespace looseleaf::dirty_tracker {

// A memfd (or a descriptor of one) and its shared mapping. The owner of the object owns both.
class SharedSegment {
 public:
  // A new segment of zeros, mode 0600 so that another uid cannot open it for writing through /proc, and sealed: nobody
  // can change its size. size_bytes >= 1.
  static SharedSegment create(const std::string& name, std::size_t size_bytes);

  // Maps [0, size_bytes) of the file behind `fd`. The descriptor is duplicated: the caller still owns `fd`.
  static SharedSegment open_fd(int fd, std::size_t size_bytes, bool writable);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  int fd() const { return fd_.get(); }
  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool writable() const { return writable_; }

  // A new descriptor of the same memory that cannot write; the caller closes it.
  OwnedFd readonly_fd() const;

  // Frees the memory of [offset, offset + length), which then reads as zeros. Both are multiples of the page size.
  void punch_hole(std::size_t offset, std::size_t length) const;

  void close_fd() { fd_.reset(); }

 private:
  SharedSegment(OwnedFd fd, std::size_t size_bytes, bool writable);

  OwnedFd fd_;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  bool writable_ = false;
};

// Copies `length` bytes; the two ranges may overlap. Throws InvalidInput for a range outside its buffer.
void copy_bytes(MutableBytes to, std::size_t to_offset, ConstBytes from, std::size_t from_offset, std::size_t length);

}  // namespace looseleaf::dirty_tracker
