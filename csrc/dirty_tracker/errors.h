// Typed exceptions of the native code; the bindings turn each into its class of looseleaf/errors.py.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace looseleaf::dirty_tracker {

// The caller's arguments are wrong. `reason` is a stable UPPER_SNAKE word.
struct InvalidInput : std::invalid_argument {
  InvalidInput(std::string reason_word, const std::string& message)
      : std::invalid_argument(message), reason(std::move(reason_word)) {}
  std::string reason;
};

// The object was closed before this call.
struct ClosedObject : std::logic_error {
  explicit ClosedObject(const std::string& what_is_closed) : std::logic_error(what_is_closed + " is closed") {}
};

// A system call failed: its name, the place of the call ("file:line") and errno.
struct SystemFailure : std::runtime_error {
  SystemFailure(std::string call_name, std::string call_place, int errno_value);
  std::string call;
  std::string place;
  int error;
};

}  // namespace looseleaf::dirty_tracker

#define LOOSELEAF_STRINGIFY_(x) #x
#define LOOSELEAF_STRINGIFY(x) LOOSELEAF_STRINGIFY_(x)
#define LOOSELEAF_PLACE __FILE__ ":" LOOSELEAF_STRINGIFY(__LINE__)
