// Fingerprints of host memory: the verifier of what a device computed, and its oracle.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bytes.h"
#include "fingerprint_key.h"

namespace looseleaf::dirty_tracker {

// The ways to compute fingerprints that this machine has, the fastest first; all give the same values. "cuda" is the
// kernel's schedule on the host, "emulated512" the loop of AVX-512 in plain code.
std::vector<std::string> fingerprint_schedules();

// Writes one fingerprint a region, kHashBytes bytes (both halves little-endian, low half first), ascending. Throws
// InvalidInput for a schedule that this machine lacks. `threads` and `poll` as in parallel_for.
void fingerprint_regions(ConstBytes bytes, std::size_t region_bytes, const fingerprint::Key& key,
                         const std::string& schedule, unsigned threads, std::uint8_t* out,
                         const std::function<void()>& poll = nullptr);

}  // namespace looseleaf::dirty_tracker
