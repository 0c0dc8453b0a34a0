// The 128-bit keyed fingerprint of a region, one definition for the host's vector units and for CUDA (docs/fingerprints.md).
//
// A region is padded with zeros to tiles of 16 KiB. Vector v of lane l of a tile is its 16 bytes from (v * 32 + l) * 16 on.
//   NH          of each lane of each tile: products of keyed 32-bit pairs, four streams, sums modulo 2^64
//   polynomial  over all lanes, modulo p = 2^61 - 1: the sum of NH(tile, lane) * r^(tile * 32 + lane), one r a stream
//   inner products of the four sums and the region's length with keys, modulo p: two of them are the fingerprint
// Sums may be taken in any order, so every schedule gives the same value.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define LOOSELEAF_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LOOSELEAF_HOST_DEVICE inline
#endif

namespace looseleaf::dirty_tracker::fingerprint {

constexpr unsigned kLanes = 32;
constexpr unsigned kVectors = 32;
constexpr unsigned kVectorBytes = 16;
constexpr unsigned kTileBytes = kLanes * kVectors * kVectorBytes;
constexpr unsigned kStreams = 4;
constexpr unsigned kNhWords = kVectors * 4 + 4 * (kStreams - 1);

// One pair of NH: `Word` is 32 bits here, fewer in the test that measures the bound; sums are modulo 2^(2 * bits).
template <typename Double, typename Word>
LOOSELEAF_HOST_DEVICE Double nh_pair(Word a, Word b, Word key_a, Word key_b) {
  return static_cast<Double>(static_cast<Double>(static_cast<Word>(a + key_a)) *
                             static_cast<Double>(static_cast<Word>(b + key_b)));
}

// Integers modulo 2^kBits - 1. Results are below the modulus.
template <unsigned kBits>
struct Mersenne {
  static constexpr std::uint64_t kModulus = (std::uint64_t{1} << kBits) - 1;

  // Any x below 2^(kBits + 3), as the sums of NH are.
  static LOOSELEAF_HOST_DEVICE std::uint64_t reduce(std::uint64_t x) { return once((x & kModulus) + (x >> kBits)); }

  static LOOSELEAF_HOST_DEVICE std::uint64_t add(std::uint64_t a, std::uint64_t b) { return once(a + b); }

  static LOOSELEAF_HOST_DEVICE std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
    const std::uint64_t low = a * b;
    const std::uint64_t high = __umul64hi(a, b);
#else
    const auto product = static_cast<unsigned __int128>(a) * b;
    const auto low = static_cast<std::uint64_t>(product);
    const auto high = static_cast<std::uint64_t>(product >> 64);
#endif
    // Both parts are below 2^kBits.
    return once((low & kModulus) + ((high << (64 - kBits)) | (low >> kBits)));
  }

  static LOOSELEAF_HOST_DEVICE std::uint64_t power(std::uint64_t base, unsigned exponent) {
    std::uint64_t result = 1;
    for (; exponent != 0; exponent >>= 1) {
      if (exponent & 1) result = multiply(result, base);
      base = multiply(base, base);
    }
    return result;
  }

 private:
  // Below 2 * kModulus. Without a branch: of random numbers no processor can guess which are too large.
  static LOOSELEAF_HOST_DEVICE std::uint64_t once(std::uint64_t x) {
    const std::uint64_t less = x - kModulus;
    return less + (kModulus & (0 - (less >> 63)));
  }
};

using Field = Mersenne<61>;

// Expanded from 32 secret random bytes by `expand_key`; small enough to be a kernel's parameter.
struct Key {
  std::uint32_t nh[kNhWords];
  std::uint64_t r[kStreams];
  std::uint64_t finish[2][kStreams + 1];
};

// Four numbers, one a stream.
struct Streams {
  std::uint64_t at[kStreams];
};

struct Vector {
  std::uint32_t words[4];
};

struct Fingerprint {
  std::uint64_t low, high;
};

LOOSELEAF_HOST_DEVICE unsigned tiles_of(std::size_t length) {
  return static_cast<unsigned>((length + kTileBytes - 1) / kTileBytes);
}

// Adds vector `index` of a lane to its NH sums.
LOOSELEAF_HOST_DEVICE void add_vector(Streams& sums, const Vector& data, unsigned index, const Key& key) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned t = 0; t < kStreams; ++t) {
    const std::uint32_t* const k = key.nh + 4 * (index + t);
    sums.at[t] += nh_pair<std::uint64_t>(data.words[0], data.words[1], k[0], k[1]);
    sums.at[t] += nh_pair<std::uint64_t>(data.words[2], data.words[3], k[2], k[3]);
  }
}

// One step of Horner's rule: sums * factor + the reduced NH sums of a lane.
LOOSELEAF_HOST_DEVICE void add_lane(Streams& sums, const Streams& factor, const Streams& nh) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned t = 0; t < kStreams; ++t) {
    sums.at[t] = Field::add(Field::multiply(sums.at[t], factor.at[t]), Field::reduce(nh.at[t]));
  }
}

LOOSELEAF_HOST_DEVICE Streams powers(const std::uint64_t (&r)[kStreams], unsigned exponent) {
  Streams out;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned t = 0; t < kStreams; ++t) out.at[t] = Field::power(r[t], exponent);
  return out;
}

LOOSELEAF_HOST_DEVICE Fingerprint finish(const Streams& sums, std::size_t length, const Key& key) {
  std::uint64_t out[2];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned half = 0; half < 2; ++half) {
    out[half] = Field::multiply(Field::reduce(length), key.finish[half][kStreams]);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (unsigned t = 0; t < kStreams; ++t) {
      out[half] = Field::add(out[half], Field::multiply(sums.at[t], key.finish[half][t]));
    }
  }
  return {out[0], out[1]};
}

// The schedule of CUDA: a block of kWarps warps takes a region, warp w the tiles w, w + kWarps, ..., lane l of the warp lane
// l of the tiles. `nh_of(tile)` gives the NH sums of this thread's lane. The block's sum of all threads' results, each
// multiplied by r^(w * kLanes + l), is the polynomial.
constexpr unsigned kWarps = 8;

template <typename NhOf>
LOOSELEAF_HOST_DEVICE Streams thread_polynomial(unsigned tiles, unsigned warp, const Streams& step, NhOf nh_of) {
  Streams sums{};
  if (warp >= tiles) return sums;
  for (unsigned left = (tiles - 1 - warp) / kWarps + 1; left > 0; --left) add_lane(sums, step, nh_of(warp + (left - 1) * kWarps));
  return sums;
}

}  // namespace looseleaf::dirty_tracker::fingerprint
