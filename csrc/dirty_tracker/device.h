// What the tracker needs of a device: CUDA implements it, and plain memory does for the tests of everything above it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bytes.h"
#include "fingerprint.h"

namespace looseleaf::dirty_tracker {

// Threads count the bytes of a span with 32 bits, and reach a little past its end.
constexpr std::size_t kSpanBytesMax = std::size_t{1} << 31;

struct DeviceSpan {
  const std::uint8_t* data;
  std::uint64_t length;
};

// Memory of the device, or pinned memory of the host; freed with its last owner.
using DeviceMemory = std::shared_ptr<std::uint8_t>;

// A place in the order of a device's work.
struct DeviceEvent {
  virtual ~DeviceEvent() = default;
  // Returns when all work before it is done. Throws what a failed piece of that work throws.
  virtual void wait() = 0;
};

// One device and one order of work on it: what is queued here runs after everything that was on the device when `begin` was
// called, and in the order of the calls. Used by one thread at a time, but `DeviceEvent::wait` by any. Every call may throw
// a DeviceFailure; after one that `is_sticky` every later call throws too.
class Device {
 public:
  virtual ~Device() = default;

  // Puts the coming work behind all work that other streams of the device hold.
  virtual void begin() = 0;

  virtual DeviceMemory allocate(std::size_t size) = 0;
  virtual DeviceMemory allocate_pinned(std::size_t size) = 0;

  // The bytes are taken before the call returns.
  virtual void copy_to_device(std::uint8_t* to, const std::uint8_t* from, std::size_t size) = 0;
  virtual void copy_to_host(std::uint8_t* to, const std::uint8_t* from, std::size_t size) = 0;
  virtual void clear(std::uint8_t* at, std::size_t size) = 0;

  // As the functions of device_kernels.h.
  virtual void fingerprints(const DeviceSpan* spans, std::size_t count, const fingerprint::Key& key,
                            fingerprint::Fingerprint* out) = 0;
  virtual void select(const fingerprint::Fingerprint* fresh, const fingerprint::Fingerprint* last, std::size_t count,
                      std::uint32_t* indices, std::uint32_t* found) = 0;
  virtual void gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to) = 0;
  virtual void compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed) = 0;

  virtual std::unique_ptr<DeviceEvent> record() = 0;
  virtual void synchronize() = 0;
};

// A call to a device failed. After a sticky one nothing on the device can be trusted in this process.
struct DeviceFailure : std::runtime_error {
  DeviceFailure(std::string call_text, std::string call_place, int code_number, std::string code_text,
                const std::string& message, bool sticky)
      : std::runtime_error(call_text + " failed: " + message),
        call(std::move(call_text)),
        place(std::move(call_place)),
        code(code_number),
        code_name(std::move(code_text)),
        is_sticky(sticky) {}
  std::string call;
  std::string place;
  int code;
  std::string code_name;
  bool is_sticky;
};

}  // namespace looseleaf::dirty_tracker
