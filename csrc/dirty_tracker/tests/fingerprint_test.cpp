// The fingerprint's bound, measured where it is large enough to be seen: the same NH and polynomial with words of 8 bits and
// the modulus 2^13 - 1, which keep the ratio of the real ones. And exact ends of buffers under the sanitizers.
#include "fingerprint.h"

#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "expect.h"
#include "fingerprint_host.h"
#include "region_hash.h"

namespace dt = looseleaf::dirty_tracker;
namespace fp = looseleaf::dirty_tracker::fingerprint;

namespace {

using Word = std::uint8_t;
using Double = std::uint16_t;
using ToyField = fp::Mersenne<13>;
constexpr unsigned kToyLanes = 5;
constexpr unsigned kToyPairs = 4;
constexpr unsigned kToyWords = 2 * kToyPairs;
constexpr unsigned kToyStreamsMax = 2;
using ToyLane = std::array<Word, kToyWords>;
using ToyMessage = std::array<ToyLane, kToyLanes>;

// What one stream can miss: equal NH sums modulo p, which 17 differences give, or a root of the difference polynomial.
constexpr double kToyBound = 17.0 / 256 + (kToyLanes - 1.0) / ToyField::kModulus;

struct ToyKey {
  // The streams' keys are shifted by two pairs, as the real ones are.
  std::array<Word, kToyWords + 4 * (kToyStreamsMax - 1)> nh;
  std::array<std::uint64_t, kToyStreamsMax> r;
};

template <typename Random>
ToyKey random_key(Random& random) {
  ToyKey key;
  for (auto& word : key.nh) word = static_cast<Word>(random());
  for (auto& r : key.r) r = random() % ToyField::kModulus;
  return key;
}

std::uint64_t toy_stream(const ToyMessage& message, const ToyKey& key, unsigned stream) {
  std::uint64_t sum = 0;
  for (unsigned lane = kToyLanes; lane-- > 0;) {
    Double nh = 0;
    for (unsigned i = 0; i < kToyWords; i += 2) {
      const Word* const k = key.nh.data() + i + 4 * stream;
      nh = static_cast<Double>(nh + fp::nh_pair<Double, Word>(message[lane][i], message[lane][i + 1], k[0], k[1]));
    }
    sum = ToyField::add(ToyField::multiply(sum, key.r[stream]), ToyField::reduce(nh));
  }
  return sum;
}

// Pairs of messages of many kinds: one bit, one word, one lane, everything, and patterns that sums like to confuse.
template <typename Random>
std::vector<std::pair<ToyMessage, ToyMessage>> toy_pairs(Random& random) {
  std::vector<std::pair<ToyMessage, ToyMessage>> pairs;
  const auto fill = [&](ToyMessage& message) {
    for (auto& lane : message) {
      for (auto& word : lane) word = static_cast<Word>(random());
    }
  };
  for (unsigned kind = 0; kind < 40; ++kind) {
    ToyMessage a{};
    if (kind % 2) fill(a);
    ToyMessage b = a;
    const unsigned lane = kind % kToyLanes;
    switch (kind % 7) {
      case 0: b[lane][kind % kToyWords] ^= 1; break;
      case 1: b[lane][kind % kToyWords] ^= 0x80; break;
      case 2: b[lane][2] ^= 0xff, b[lane][3] ^= 0xff; break;
      case 3: b[lane][0] += 1, b[lane][2] -= 1; break;
      case 4: std::swap(b[0], b[kToyLanes - 1]), b[1][0] ^= 3; break;
      case 5: for (auto& other : b) other[5] += 16; break;
      default: fill(b);
    }
    if (a != b) pairs.emplace_back(a, b);
  }
  return pairs;
}

// For unequal pairs of words, no difference of their products comes from more than 2^bits of the 2^(2 * bits) keys.
void test_nh_pairs_differ_as_proven() {
  std::mt19937 random(1);
  unsigned most = 0;
  for (unsigned sample = 0; sample < 60; ++sample) {
    const Word a = static_cast<Word>(random()), b = static_cast<Word>(random());
    const Word c = sample % 3 == 0 ? a : static_cast<Word>(random());
    const Word d = sample % 3 == 1 ? b : static_cast<Word>(random());
    if (a == c && b == d) continue;
    std::vector<unsigned> seen(1 << 16);
    for (unsigned key = 0; key < 1 << 16; ++key) {
      const Word x = static_cast<Word>(key), y = static_cast<Word>(key >> 8);
      ++seen[static_cast<Double>(fp::nh_pair<Double, Word>(a, b, x, y) - fp::nh_pair<Double, Word>(c, d, x, y))];
    }
    for (const unsigned count : seen) most = std::max(most, count);
  }
  EXPECT(most <= 256);
  EXPECT(most > 128);
}

void test_toy_collisions_stay_below_the_bound() {
  std::mt19937 random(2);
  double worst[kToyStreamsMax] = {};
  for (const auto& [a, b] : toy_pairs(random)) {
    constexpr unsigned kKeys = 100'000;
    unsigned one = 0, both = 0;
    for (unsigned i = 0; i < kKeys; ++i) {
      const ToyKey key = random_key(random);
      if (toy_stream(a, key, 0) != toy_stream(b, key, 0)) continue;
      ++one;
      both += toy_stream(a, key, 1) == toy_stream(b, key, 1);
    }
    worst[0] = std::max(worst[0], double(one) / kKeys);
    worst[1] = std::max(worst[1], double(both) / kKeys);
  }
  std::printf("toy fingerprint: worst pair collides for %.5f of keys in one stream (bound %.5f), %.6f in two (%.6f)\n",
              worst[0], kToyBound, worst[1], kToyBound * kToyBound);
  EXPECT(worst[0] <= kToyBound);
  EXPECT(worst[1] <= kToyBound * kToyBound);
  // Collisions that can be seen at all: else the test could not fail.
  EXPECT(worst[0] > 1.0 / 1024);
}

void test_field_arithmetic_equals_plain_remainders() {
  std::mt19937_64 random(3);
  for (unsigned i = 0; i < 20'000; ++i) {
    const std::uint64_t edges[] = {0, 1, fp::Field::kModulus - 1, random() % fp::Field::kModulus};
    const std::uint64_t a = edges[i % 4], b = edges[i / 4 % 4], x = i % 5 ? random() : ~std::uint64_t{0};
    EXPECT(fp::Field::reduce(x) == x % fp::Field::kModulus);
    EXPECT(fp::Field::add(a, b) == (a + b) % fp::Field::kModulus);
    EXPECT(fp::Field::multiply(a, b) ==
           static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b % fp::Field::kModulus));
  }
  EXPECT(fp::Field::power(3, 0) == 1 && fp::Field::power(3, 7) == 2187);
}

void test_schedules_read_exactly_their_buffer() {
  const fp::Key key = fp::expand_key({1, 2, 3});
  for (const std::size_t size : {0, 1, 15, 16, 17, 513, 16'383, 16'384, 16'385, 50'000, 131'072}) {
    // A block of exactly this size, so that the address sanitizer sees a read past its end.
    const std::unique_ptr<std::uint8_t[]> data(new std::uint8_t[size + 1]());
    std::vector<std::uint8_t> first;
    for (const auto& schedule : dt::fingerprint_schedules()) {
      std::vector<std::uint8_t> table(dt::Regions(size, 40'000).count() * dt::kHashBytes);
      dt::fingerprint_regions({data.get() + 1, size}, 40'000, key, schedule, 2, table.data());
      if (first.empty()) first = table;
      EXPECT(table == first);
    }
  }
  EXPECT_THROWS(dt::InvalidInput, dt::fingerprint_regions({}, 1, key, "abacus", 1, nullptr));
}

}  // namespace

void run_fingerprint_tests() {
  RUN(test_nh_pairs_differ_as_proven);
  RUN(test_toy_collisions_stay_below_the_bound);
  RUN(test_field_arithmetic_equals_plain_remainders);
  RUN(test_schedules_read_exactly_their_buffer);
}
