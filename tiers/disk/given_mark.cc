#include "tiers/disk/given_mark.h"

#include <algorithm>
#include <cstring>

namespace terrace {
namespace {

// Zeros follow. A program that changes a byte of it takes the file back.
constexpr char kMark[] =
    "Terrace 1\n"
    "The state of training jobs. Nothing here outlives the job that wrote it.\n"
    "To use the file or device for something else, just overwrite it.\n";
static_assert(sizeof(kMark) <= kGivenMarkBytes);

}  // namespace

void WriteGivenMark(char* block) {
  std::memset(block, 0, kGivenMarkBytes);
  std::memcpy(block, kMark, sizeof(kMark));
}

bool IsGivenMark(const char* block) {
  return std::memcmp(block, kMark, sizeof(kMark)) == 0 &&
         FirstNonZero({block + sizeof(kMark),
                       static_cast<size_t>(kGivenMarkBytes) - sizeof(kMark)}) <
             0;
}

int64_t FirstNonZero(absl::Span<const char> bytes) {
  const auto found =
      std::find_if(bytes.begin(), bytes.end(), [](char c) { return c != 0; });
  return found == bytes.end() ? -1 : found - bytes.begin();
}

}  // namespace terrace
