// The mark that a file or device given to Terrace begins with: a block of text
// and zeros. Thread-safe, stateless.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/bytes.h"

namespace terrace {

inline constexpr int64_t kGivenMarkBytes = kBlockBytes;

// All of a block of kGivenMarkBytes. A mark may say how often the power of the
// medium below was lost before its stores were safe; -1: it does not.
void WriteGivenMark(char* block, int64_t unsafe_shutdowns = -1);
bool IsGivenMark(const char* block);
// Of what is a mark.
int64_t MarkedUnsafeShutdowns(const char* block);

// The index of the first byte that is not zero; -1: all are.
int64_t FirstNonZero(absl::Span<const char> bytes);

}  // namespace terrace
