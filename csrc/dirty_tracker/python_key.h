// A fingerprint's key from Python's bytes; shared by the binding files of both modules.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "errors.h"
#include "fingerprint_key.h"

namespace looseleaf::dirty_tracker {

inline fingerprint::Key key_of(const pybind11::bytes& secret) {
  const std::string_view text = secret;
  if (text.size() != fingerprint::kSecretBytes) {
    throw InvalidInput("SECRET_LENGTH", "a fingerprint's secret has 32 bytes, not " + std::to_string(text.size()));
  }
  fingerprint::Secret bytes;
  std::copy(text.begin(), text.end(), bytes.begin());
  return fingerprint::expand_key(bytes);
}

}  // namespace looseleaf::dirty_tracker
