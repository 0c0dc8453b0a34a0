#include <algorithm>

#include "cuda_device.h"
#include "device_kernels.h"

namespace looseleaf::dirty_tracker {
namespace {

using fingerprint::Fingerprint;
using fingerprint::Key;
using fingerprint::kLanes;
using fingerprint::kStreams;
using fingerprint::kTileBytes;
using fingerprint::kVectorBytes;
using fingerprint::kVectors;
using fingerprint::kWarps;
using fingerprint::Streams;
using fingerprint::Vector;

constexpr unsigned kBlockThreads = kWarps * kLanes;
constexpr unsigned kBlocksPerProcessor = 4;
constexpr unsigned kSelectThreads = 256;
// Loads that each thread has in flight at once, so that the memory system is never idle.
constexpr unsigned kFingerprintUnroll = 8;
constexpr unsigned kCopyUnroll = 4;

// Plain loads that pass by the first cache: `ld.global.nc` would promise that nobody writes meanwhile.
__device__ __forceinline__ Vector load_vector(const std::uint8_t* from) {
  Vector out;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(out.words[0]), "=r"(out.words[1]), "=r"(out.words[2]), "=r"(out.words[3])
               : "l"(from));
  return out;
}

// Up to 16 bytes at any address, padded with zeros. All indices are constants, so that nothing lands in local memory.
__device__ __forceinline__ Vector load_bytes(const std::uint8_t* from, std::uint64_t left) {
  Vector out{};
#pragma unroll
  for (unsigned i = 0; i < kVectorBytes; ++i) {
    if (i < left) out.words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
  }
  return out;
}

__device__ __forceinline__ bool is_aligned(const void* pointer) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & (kVectorBytes - 1)) == 0;
}

// The NH sums of one lane of one tile.
__device__ __forceinline__ Streams lane_sums(const DeviceSpan& span, unsigned tile, unsigned lane, const Key& key) {
  const std::uint64_t begin = static_cast<std::uint64_t>(tile) * kTileBytes + lane * kVectorBytes;
  const std::uint8_t* const at = span.data + begin;
  Streams sums{};
  if (is_aligned(span.data) && static_cast<std::uint64_t>(tile + 1) * kTileBytes <= span.length) {
#pragma unroll
    for (unsigned first = 0; first < kVectors; first += kFingerprintUnroll) {
      Vector data[kFingerprintUnroll];
#pragma unroll
      for (unsigned i = 0; i < kFingerprintUnroll; ++i) data[i] = load_vector(at + (first + i) * kLanes * kVectorBytes);
#pragma unroll
      for (unsigned i = 0; i < kFingerprintUnroll; ++i) fingerprint::add_vector(sums, data[i], first + i, key);
    }
  } else {
#pragma unroll 1
    for (unsigned v = 0; v < kVectors; ++v) {
      const std::uint64_t offset = begin + static_cast<std::uint64_t>(v) * kLanes * kVectorBytes;
      const std::uint64_t left = offset < span.length ? span.length - offset : 0;
      fingerprint::add_vector(sums, load_bytes(span.data + offset, left), v, key);
    }
  }
  return sums;
}

// One block of eight warps a span, striding over the spans; the schedule of fingerprint.h.
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    fingerprint_kernel(const DeviceSpan* spans, std::size_t count, const __grid_constant__ Key key, Fingerprint* out) {
  __shared__ Streams warp_sums[kWarps];
  __shared__ Streams shifts[kBlockThreads];
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  shifts[threadIdx.x] = fingerprint::powers(key.r, threadIdx.x);
  const Streams step = fingerprint::powers(key.r, kBlockThreads);
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const DeviceSpan span = spans[i];
    const Streams sums = fingerprint::thread_polynomial(fingerprint::tiles_of(span.length), warp, step,
                                                        [&](unsigned tile) { return lane_sums(span, tile, lane, key); });
#pragma unroll
    for (unsigned t = 0; t < kStreams; ++t) {
      std::uint64_t sum = fingerprint::Field::multiply(sums.at[t], shifts[threadIdx.x].at[t]);
#pragma unroll
      for (unsigned step_down = kLanes / 2; step_down != 0; step_down /= 2) {
        sum = fingerprint::Field::add(sum, __shfl_down_sync(0xffffffffu, sum, step_down));
      }
      if (lane == 0) warp_sums[warp].at[t] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      Streams total{};
#pragma unroll
      for (unsigned w = 0; w < kWarps; ++w) {
#pragma unroll
        for (unsigned t = 0; t < kStreams; ++t) total.at[t] = fingerprint::Field::add(total.at[t], warp_sums[w].at[t]);
      }
      out[i] = fingerprint::finish(total, span.length, key);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const Fingerprint* fresh, const Fingerprint* last, std::size_t count, std::uint32_t* indices,
                  std::uint32_t* found) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kSelectThreads + threadIdx.x;
  const bool differs = i < count && (fresh[i].low != last[i].low || fresh[i].high != last[i].high);
  const unsigned mask = __ballot_sync(0xffffffffu, differs);
  const unsigned lane = threadIdx.x % kLanes;
  std::uint32_t base = 0;
  if (lane == 0 && mask != 0) base = atomicAdd(found, __popc(mask));
  base = __shfl_sync(0xffffffffu, base, 0);
  if (differs) indices[base + __popc(mask & ((1u << lane) - 1))] = static_cast<std::uint32_t>(i);
}

// One block a span. `to` is 16-byte aligned and so is every offset.
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    gather_kernel(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to) {
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const DeviceSpan span = spans[i];
    std::uint8_t* const target = to + offsets[i];
    const unsigned length = static_cast<unsigned>(span.length);
    const unsigned vectors = is_aligned(span.data) ? length / kVectorBytes : 0;
    for (unsigned v = threadIdx.x; v < vectors; v += kBlockThreads * kCopyUnroll) {
#pragma unroll
      for (unsigned u = 0; u < kCopyUnroll; ++u) {
        const unsigned at = v + u * kBlockThreads;
        if (at < vectors) reinterpret_cast<uint4*>(target)[at] = __ldcs(reinterpret_cast<const uint4*>(span.data) + at);
      }
    }
    for (unsigned at = vectors * kVectorBytes + threadIdx.x; at < length; at += kBlockThreads) {
      target[at] = span.data[at];
    }
  }
}

__device__ __forceinline__ unsigned differs(const uint4 a, const uint4 b) {
  return (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
}

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    compare_kernel(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed) {
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const DeviceSpan a = fresh[i];
    const std::uint8_t* const b = old[i].data;
    const unsigned length = static_cast<unsigned>(a.length);
    const unsigned vectors = is_aligned(a.data) && is_aligned(b) ? length / kVectorBytes : 0;
    unsigned difference = 0;
    for (unsigned v = threadIdx.x; v < vectors; v += kBlockThreads * kCopyUnroll) {
#pragma unroll
      for (unsigned u = 0; u < kCopyUnroll; ++u) {
        const unsigned at = v + u * kBlockThreads;
        if (at < vectors) {
          difference |= differs(__ldcs(reinterpret_cast<const uint4*>(a.data) + at),
                                __ldcs(reinterpret_cast<const uint4*>(b) + at));
        }
      }
    }
    for (unsigned at = vectors * kVectorBytes + threadIdx.x; at < length; at += kBlockThreads) {
      difference |= a.data[at] ^ b[at];
    }
    const int any = __syncthreads_or(static_cast<int>(difference));
    if (threadIdx.x == 0) changed[i] = any != 0;
  }
}

unsigned blocks_for(std::size_t count, unsigned processors) {
  return static_cast<unsigned>(std::min<std::size_t>(count, std::size_t{processors} * kBlocksPerProcessor));
}

}  // namespace

void start_fingerprints(const DeviceSpan* spans, std::size_t count, const Key& key, Fingerprint* out, unsigned processors,
                        cudaStream_t stream) {
  if (count == 0) return;
  fingerprint_kernel<<<blocks_for(count, processors), kBlockThreads, 0, stream>>>(spans, count, key, out);
  LOOSELEAF_CUDA(cudaGetLastError());
}

void start_select(const Fingerprint* fresh, const Fingerprint* last, std::size_t count, std::uint32_t* indices,
                  std::uint32_t* found, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kSelectThreads - 1) / kSelectThreads);
  select_kernel<<<blocks, kSelectThreads, 0, stream>>>(fresh, last, count, indices, found);
  LOOSELEAF_CUDA(cudaGetLastError());
}

void start_gather(const DeviceSpan* spans, const std::uint64_t* offsets, std::size_t count, std::uint8_t* to,
                  unsigned processors, cudaStream_t stream) {
  if (count == 0) return;
  gather_kernel<<<blocks_for(count, processors), kBlockThreads, 0, stream>>>(spans, offsets, count, to);
  LOOSELEAF_CUDA(cudaGetLastError());
}

void start_compare(const DeviceSpan* fresh, const DeviceSpan* old, std::size_t count, std::uint8_t* changed,
                   unsigned processors, cudaStream_t stream) {
  if (count == 0) return;
  compare_kernel<<<blocks_for(count, processors), kBlockThreads, 0, stream>>>(fresh, old, count, changed);
  LOOSELEAF_CUDA(cudaGetLastError());
}

}  // namespace looseleaf::dirty_tracker
