#include "canonical.h"

#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace looseleaf::checkpoint {
namespace {

enum Opcode : std::uint8_t {
  kFrame = 0x95,
  kStop = 0x2E,
  kMemoize = 0x94,
  kGet = 0x68,
  kLongGet = 0x6A,
  kProto = 0x80,
};

// How an opcode's argument is read; kFixedN: N bytes, kCountedN: a length of N bytes and so many bytes.
enum class Argument : std::uint8_t { kNone, kFixed1, kFixed2, kFixed4, kFixed8, kCounted1, kCounted4, kCounted8, kOther };

constexpr Argument argument_of(std::uint8_t opcode) {
  switch (opcode) {
    case 0x4B: case 0x82: case kGet: case kProto: return Argument::kFixed1;
    case 0x4D: case 0x83: return Argument::kFixed2;
    case 0x4A: case 0x84: case kLongGet: return Argument::kFixed4;
    case 0x47: case kFrame: return Argument::kFixed8;
    case 0x8A: case 0x43: case 0x8C: return Argument::kCounted1;
    case 0x8B: case 0x42: case 0x58: return Argument::kCounted4;
    case 0x8E: case 0x96: case 0x8D: return Argument::kCounted8;
    // Opcodes of old protocols, whose arguments end with a line, and memo writes with a place of their own.
    case 'c': case 'F': case 'g': case 'i': case 'I': case 'L': case 'p': case 'P': case 'S': case 'V': case 'q': case 'r':
      return Argument::kOther;
    default: return Argument::kNone;
  }
}

constexpr std::array<Argument, 256> make_arguments() {
  std::array<Argument, 256> table{};
  for (unsigned opcode = 0; opcode < 256; ++opcode) table[opcode] = argument_of(static_cast<std::uint8_t>(opcode));
  return table;
}

constexpr std::array<Argument, 256> kArguments = make_arguments();

bool is_text(std::uint8_t opcode) { return opcode == 0x8C || opcode == 0x58 || opcode == 0x8D; }

class Rewriter {
 public:
  explicit Rewriter(std::string_view data) : data_(data) { out_.reserve(data.size()); }

  std::optional<std::string> run() {
    begin_pickle();
    while (at_ < data_.size()) {
      if (!step()) return std::nullopt;
    }
    // The last pickle must have ended.
    if (out_.size() != body_) return std::nullopt;
    out_.resize(out_.size() - kHead);
    return std::move(out_);
  }

 private:
  // PROTO 5 and FRAME with its length.
  static constexpr std::size_t kHead = 2 + 9;

  void begin_pickle() {
    out_.append("\x80\x05\x95", 3);
    out_.append(8, '\0');
    body_ = out_.size();
  }

  void end_pickle() {
    const std::uint64_t size = out_.size() - body_;
    std::memcpy(out_.data() + body_ - 8, &size, 8);
    begin_pickle();
  }

  // Copies or rewrites one opcode with its argument.
  bool step() {
    const auto opcode = static_cast<std::uint8_t>(data_[at_]);
    std::size_t size = 1;
    if (!argument_size(kArguments[opcode], size)) return false;
    const std::string_view whole = data_.substr(at_, size);
    at_ += size;
    if (is_text(opcode)) return text(whole);
    switch (opcode) {
      case kFrame:
      case kProto:
        return true;
      case kMemoize:
        places_.push_back(count_++);
        break;
      case kGet:
      case kLongGet:
        return read_memo(whole);
      case kStop:
        out_.append(whole);
        end_pickle();
        return true;
      default:
        break;
    }
    out_.append(whole);
    return true;
  }

  bool argument_size(Argument argument, std::size_t& size) const {
    std::size_t length_bytes = 0;
    switch (argument) {
      case Argument::kNone: break;
      case Argument::kFixed1: size += 1; break;
      case Argument::kFixed2: size += 2; break;
      case Argument::kFixed4: size += 4; break;
      case Argument::kFixed8: size += 8; break;
      case Argument::kCounted1: length_bytes = 1; break;
      case Argument::kCounted4: length_bytes = 4; break;
      case Argument::kCounted8: length_bytes = 8; break;
      case Argument::kOther: return false;
    }
    const std::size_t left = data_.size() - at_;
    if (size + length_bytes > left) return false;
    if (length_bytes == 0) return true;
    std::uint64_t length = 0;
    std::memcpy(&length, data_.data() + at_ + 1, length_bytes);
    size += length_bytes;
    if (length > left - size) return false;
    size += static_cast<std::size_t>(length);
    return true;
  }

  // Writes a text, or where it is in the memo already.
  bool text(std::string_view literal) {
    const bool is_memoized = at_ < data_.size() && static_cast<std::uint8_t>(data_[at_]) == kMemoize;
    if (!is_memoized) {
      out_.append(literal);
      return true;
    }
    ++at_;
    const auto [known, is_new] = texts_.emplace(literal, count_);
    places_.push_back(known->second);
    if (is_new) {
      ++count_;
      out_.append(literal);
      out_.push_back(static_cast<char>(kMemoize));
    } else {
      write_get(known->second);
    }
    return true;
  }

  bool read_memo(std::string_view whole) {
    std::uint32_t old = 0;
    std::memcpy(&old, whole.data() + 1, whole.size() - 1);
    if (old >= places_.size()) return false;
    write_get(places_[old]);
    return true;
  }

  void write_get(std::uint32_t place) {
    if (place < 256) {
      out_.push_back(static_cast<char>(kGet));
      out_.push_back(static_cast<char>(place));
      return;
    }
    out_.push_back(static_cast<char>(kLongGet));
    char bytes[4];
    std::memcpy(bytes, &place, 4);
    out_.append(bytes, 4);
  }

  std::string_view data_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t body_ = 0;
  // Old memo place -> new one.
  std::vector<std::uint32_t> places_;
  std::uint32_t count_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> texts_;
};

}  // namespace

std::optional<std::string> canonical_pickle(std::string_view data) { return Rewriter(data).run(); }

}  // namespace looseleaf::checkpoint
