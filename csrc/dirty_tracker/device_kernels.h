// The kernels and what starts them. Each start only queues work in `stream`; errors of a start leave as DeviceFailure. No span
// is longer than kSpanBytesMax.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device.h"
#include "fingerprint.h"

namespace looseleaf::dirty_tracker {

// One fingerprint for each of `count` spans, any alignment. All pointers are device memory.
void start_fingerprints(const DeviceSpan* spans, std::size_t count, const fingerprint::Key& key,
                        fingerprint::Fingerprint* out, unsigned processors, cudaStream_t stream);

// Adds the indices at which `fresh` differs from `last` to `indices`, in any order, and their number to `*found`.
void start_select(const fingerprint::Fingerprint* fresh, const fingerprint::Fingerprint* last, std::size_t count,
                  std::uint32_t* indices, std::uint32_t* found, cudaStream_t stream);

// Copies span i to `to + offsets[i]`, for each of `count` spans.
void start_gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to,
                  unsigned processors, cudaStream_t stream);

// Sets changed[i] to whether the spans fresh[i] and old[i], of equal length, differ.
void start_compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed,
                   unsigned processors, cudaStream_t stream);

}  // namespace looseleaf::dirty_tracker
