// Regions of device memory: exact compare, and copies of chosen regions to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bytes.h"

namespace looseleaf::dirty_tracker {

// Indices of the regions of [fresh, fresh + size) whose bits differ from those at `old`, ascending. Both are device memory
// of one device, any alignment. The work is ordered in `stream`, after all that was put there; returns when it is done.
std::vector<std::size_t> compare_device_regions(const void* fresh, const void* old, std::size_t size,
                                                std::size_t region_bytes, cudaStream_t stream);

// Copies the listed regions (ascending) of [from, from + size) to `to`, one behind another, neighbours in one transfer.
// Ordered in `stream`; returns the number of bytes when they have arrived. Throws InvalidInput when `to` is too small.
std::size_t copy_device_regions(const void* from, std::size_t size, std::size_t region_bytes,
                                const std::vector<std::size_t>& indices, MutableBytes to, cudaStream_t stream);

}  // namespace looseleaf::dirty_tracker
