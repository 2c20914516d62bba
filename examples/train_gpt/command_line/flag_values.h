// From the text of one flag to its value. Each error is one line that names
// the flag, what it takes and what it got.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace train_gpt {

absl::StatusOr<int64_t> ParseInteger(absl::string_view flag,
                                     absl::string_view text, int64_t least,
                                     int64_t most);

// Finite and within [least, most].
absl::StatusOr<double> ParseNumber(absl::string_view flag,
                                   absl::string_view text, double least,
                                   double most);

// A positive count of bytes as terrace::ParseBytes has it: 4096, 64KiB, 1.5GiB,
// 2GB.
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag,
                                   absl::string_view text);

// "READ,WRITE", each a count of bytes as above or 0.
absl::StatusOr<std::pair<int64_t, int64_t>> ParseBytesPair(
    absl::string_view flag, absl::string_view text);

// The one of `known` with the fewest edits from `name`, or "" when none is
// near enough to be what was meant.
std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& known);

}  // namespace train_gpt
