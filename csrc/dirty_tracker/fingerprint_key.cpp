#include "fingerprint_key.h"

namespace looseleaf::dirty_tracker::fingerprint {
namespace {

using Block = std::array<std::uint32_t, 16>;

std::uint32_t rotated(std::uint32_t x, unsigned bits) { return x << bits | x >> (32 - bits); }

void quarter_round(Block& s, unsigned a, unsigned b, unsigned c, unsigned d) {
  s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 16);
  s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 12);
  s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 8);
  s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 7);
}

Block chacha20_block(const Secret& secret, std::uint32_t counter) {
  Block state{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  for (unsigned i = 0; i < kSecretBytes; ++i) state[4 + i / 4] |= std::uint32_t{secret[i]} << (8 * (i % 4));
  state[12] = counter;
  Block mixed = state;
  for (unsigned round = 0; round < 10; ++round) {
    for (unsigned i = 0; i < 4; ++i) quarter_round(mixed, i, 4 + i, 8 + i, 12 + i);
    for (unsigned i = 0; i < 4; ++i) quarter_round(mixed, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (unsigned i = 0; i < mixed.size(); ++i) mixed[i] += state[i];
  return mixed;
}

class KeyStream {
 public:
  explicit KeyStream(const Secret& secret) : secret_(secret) {}

  std::uint32_t word() {
    if (used_ == block_.size()) {
      block_ = chacha20_block(secret_, counter_++);
      used_ = 0;
    }
    return block_[used_++];
  }

  std::uint64_t field_element() {
    for (;;) {
      const std::uint64_t low = word();
      const std::uint64_t candidate = (low | std::uint64_t{word()} << 32) & Field::kModulus;
      if (candidate != Field::kModulus) return candidate;
    }
  }

 private:
  const Secret& secret_;
  Block block_{};
  std::size_t used_ = block_.size();
  std::uint32_t counter_ = 0;
};

}  // namespace

Key expand_key(const Secret& secret) {
  KeyStream stream(secret);
  Key key;
  for (auto& word : key.nh) word = stream.word();
  for (auto& r : key.r) r = stream.field_element();
  for (auto& half : key.finish) {
    for (auto& element : half) element = stream.field_element();
  }
  return key;
}

}  // namespace looseleaf::dirty_tracker::fingerprint
