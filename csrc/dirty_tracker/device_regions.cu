#include <algorithm>
#include <string>

#include "cuda_device.h"
#include "device_regions.h"

namespace looseleaf::dirty_tracker {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kBlocksPerProcessor = 4;
constexpr unsigned kVectorBytes = 16;
// Loads that each thread has in flight at once, so that the memory system is never idle.
constexpr unsigned kUnroll = 4;

__device__ __forceinline__ unsigned differs(const uint4 a, const uint4 b) {
  return (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
}

// One block per region, striding over the regions. Plain loads: `ld.global.nc` would promise that nobody writes meanwhile.
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    compare_kernel(const std::uint8_t* fresh, const std::uint8_t* old, std::size_t size, std::size_t region_bytes,
                   std::size_t count, bool aligned, std::uint8_t* changed) {
  for (std::size_t region = blockIdx.x; region < count; region += gridDim.x) {
    const std::size_t begin = region * region_bytes;
    const std::size_t length = region_bytes < size - begin ? region_bytes : size - begin;
    const std::size_t vectors = aligned ? length / kVectorBytes : 0;
    const auto* const a = reinterpret_cast<const uint4*>(fresh + begin);
    const auto* const b = reinterpret_cast<const uint4*>(old + begin);
    unsigned difference = 0;
    for (std::size_t i = threadIdx.x; i < vectors; i += kBlockThreads * kUnroll) {
#pragma unroll
      for (unsigned step = 0; step < kUnroll; ++step) {
        const std::size_t at = i + step * kBlockThreads;
        if (at < vectors) difference |= differs(__ldcs(a + at), __ldcs(b + at));
      }
    }
    for (std::size_t i = vectors * kVectorBytes + threadIdx.x; i < length; i += kBlockThreads) {
      difference |= fresh[begin + i] ^ old[begin + i];
    }
    const int any = __syncthreads_or(static_cast<int>(difference));
    if (threadIdx.x == 0) changed[region] = any != 0;
  }
}

int device_of(const void* pointer, const char* which) {
  cudaPointerAttributes attributes{};
  LOOSELEAF_CUDA(cudaPointerGetAttributes(&attributes, pointer));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    throw InvalidInput("NOT_DEVICE_MEMORY", std::string(which) + " is not an address of device memory");
  }
  return attributes.device;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0; }

unsigned grid_blocks(std::size_t count, int device) {
  int processors = 0;
  LOOSELEAF_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const std::size_t resident = static_cast<std::size_t>(processors) * kBlocksPerProcessor;
  return static_cast<unsigned>(std::min(count, resident));
}

}  // namespace

std::vector<std::size_t> compare_device_regions(const void* fresh, const void* old, std::size_t size,
                                                std::size_t region_bytes, cudaStream_t stream) {
  const std::size_t count = Regions(size, region_bytes).count();
  std::vector<std::size_t> found;
  if (count == 0) return found;
  const int device = device_of(fresh, "new");
  if (device_of(old, "old") != device) throw InvalidInput("DEVICES_DIFFER", "new and old lie on different devices");
  const CurrentDevice current(device);
  const StreamMemory changed(count, stream);
  // A region size that is no multiple of the vector makes every second region unaligned.
  const bool aligned = is_aligned(fresh) && is_aligned(old) && region_bytes % kVectorBytes == 0;
  compare_kernel<<<grid_blocks(count, device), kBlockThreads, 0, stream>>>(
      static_cast<const std::uint8_t*>(fresh), static_cast<const std::uint8_t*>(old), size, region_bytes, count, aligned,
      static_cast<std::uint8_t*>(changed.data()));
  LOOSELEAF_CUDA(cudaGetLastError());
  // One byte a region: small enough to select from on the host, which also keeps the indices in order.
  std::vector<std::uint8_t> flags(count);
  LOOSELEAF_CUDA(cudaMemcpyAsync(flags.data(), changed.data(), count, cudaMemcpyDeviceToHost, stream));
  LOOSELEAF_CUDA(cudaStreamSynchronize(stream));
  for (std::size_t i = 0; i < count; ++i) {
    if (flags[i] != 0) found.push_back(i);
  }
  return found;
}

std::size_t copy_device_regions(const void* from, std::size_t size, std::size_t region_bytes,
                                const std::vector<std::size_t>& indices, MutableBytes to, cudaStream_t stream) {
  const Regions regions(size, region_bytes);
  std::size_t total = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= regions.count() || (i > 0 && indices[i] <= indices[i - 1])) {
      throw InvalidInput("REGIONS_MALFORMED", "region indices must be ascending and inside the memory");
    }
    total += regions.length(indices[i]);
  }
  if (total > to.size) {
    throw InvalidInput("RANGE_OUTSIDE_BUFFER",
                       std::to_string(total) + " bytes do not fit into " + std::to_string(to.size) + " bytes");
  }
  if (total == 0) return 0;
  const CurrentDevice current(device_of(from, "src"));
  try {
    std::size_t at = 0;
    for (std::size_t first = 0; first < indices.size();) {
      std::size_t next = first;
      std::size_t length = 0;
      do {
        length += regions.length(indices[next]);
        ++next;
      } while (next < indices.size() && indices[next] == indices[next - 1] + 1);
      const std::uint8_t* const source = static_cast<const std::uint8_t*>(from) + regions.begin(indices[first]);
      LOOSELEAF_CUDA(cudaMemcpyAsync(to.data + at, source, length, cudaMemcpyDeviceToHost, stream));
      at += length;
      first = next;
    }
  } catch (...) {
    // Copies that began still write to pinned memory, which the caller may free after the error.
    static_cast<void>(cudaStreamSynchronize(stream));
    throw;
  }
  LOOSELEAF_CUDA(cudaStreamSynchronize(stream));
  return total;
}

}  // namespace looseleaf::dirty_tracker
