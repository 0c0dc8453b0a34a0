// One pickle for one state: equal texts become one text, whatever objects they were (design §3: units).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace looseleaf::checkpoint {

// The pickle, or run of pickles that share a memo, of protocol 5 in canonical form: each distinct text is written once
// and read from the memo afterwards, memo places are numbered in the order of first use, and each pickle is one frame.
// Nothing if `data` holds an opcode of another protocol, ends in the middle of one, or reads a memo place that was never
// written: then it is no pickle that a pickler of protocol 5 wrote.
std::optional<std::string> canonical_pickle(std::string_view data);

}  // namespace looseleaf::checkpoint
