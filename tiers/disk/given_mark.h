// The mark that a file or device given to Terrace begins with: a block of text
// and zeros. Thread-safe, stateless.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/base/bytes.h"

namespace terrace {

inline constexpr int64_t kGivenMarkBytes = kBlockBytes;

// Both of a block of kGivenMarkBytes.
void WriteGivenMark(char* block);
bool IsGivenMark(const char* block);

// The index of the first byte that is not zero; -1: all are.
int64_t FirstNonZero(absl::Span<const char> bytes);

}  // namespace terrace
