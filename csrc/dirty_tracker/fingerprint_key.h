// Key words from a short secret.
#pragma once

#include <array>
#include <cstdint>

#include "fingerprint.h"

namespace looseleaf::dirty_tracker::fingerprint {

constexpr std::size_t kSecretBytes = 32;
using Secret = std::array<std::uint8_t, kSecretBytes>;

// The ChaCha20 key stream of the secret, nonce 0 and counter from 0 (RFC 8439), read as little-endian words: the NH words,
// then the four r, then the keys of the inner products. Of each 64-bit word for a field element the low 61 bits count; the
// modulus itself is passed over.
Key expand_key(const Secret& secret);

}  // namespace looseleaf::dirty_tracker::fingerprint
