#include "tiers/disk/given_mark.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace terrace {
namespace {

// Zeros follow. A program that changes a byte of it takes the file back.
constexpr char kMark[] =
    "Terrace 1\n"
    "The state of training jobs. Nothing here outlives the job that wrote it.\n"
    "To use the file or device for something else, just overwrite it.\n";
// Where the number of unsafe shutdowns is, if there is one: text as well, with
// as many zeros behind it as fill its room.
constexpr char kCount[] = "Unsafe shutdowns before: ";
constexpr size_t kCountOffset = 512;
constexpr size_t kCountBytes = 64;
constexpr size_t kMostDigits = 18;
static_assert(sizeof(kMark) <= kCountOffset);
static_assert(sizeof(kCount) + kMostDigits + 1 <= kCountBytes);

// What is in the count's room: -1 of zeros alone, nullopt of anything else.
std::optional<int64_t> ReadCount(const char* block) {
  const absl::string_view room(block + kCountOffset, kCountBytes);
  if (FirstNonZero({room.data(), room.size()}) < 0) return -1;
  const absl::string_view text = room.substr(0, room.find('\0'));
  absl::string_view digits = text;
  int64_t count = -1;
  if (!absl::ConsumePrefix(&digits, kCount) ||
      !absl::ConsumeSuffix(&digits, "\n") || digits.size() > kMostDigits ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &count) ||
      FirstNonZero({room.data() + text.size(), room.size() - text.size()}) >=
          0) {
    return std::nullopt;
  }
  return count;
}

}  // namespace

void WriteGivenMark(char* block, int64_t unsafe_shutdowns) {
  std::memset(block, 0, kGivenMarkBytes);
  std::memcpy(block, kMark, sizeof(kMark));
  if (unsafe_shutdowns < 0) return;
  const std::string count = absl::StrCat(kCount, unsafe_shutdowns, "\n");
  TERRACE_CHECK(count.size() < kCountBytes);
  std::memcpy(block + kCountOffset, count.data(), count.size());
}

bool IsGivenMark(const char* block) {
  constexpr size_t kEnd = kCountOffset + kCountBytes;
  return std::memcmp(block, kMark, sizeof(kMark)) == 0 &&
         FirstNonZero({block + sizeof(kMark), kCountOffset - sizeof(kMark)}) <
             0 &&
         ReadCount(block).has_value() &&
         FirstNonZero(
             {block + kEnd, static_cast<size_t>(kGivenMarkBytes) - kEnd}) < 0;
}

int64_t MarkedUnsafeShutdowns(const char* block) {
  return ReadCount(block).value_or(-1);
}

int64_t FirstNonZero(absl::Span<const char> bytes) {
  const auto found =
      std::find_if(bytes.begin(), bytes.end(), [](char c) { return c != 0; });
  return found == bytes.end() ? -1 : found - bytes.begin();
}

}  // namespace terrace
