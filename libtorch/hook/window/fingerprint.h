// Whether bytes are what they were: a 64-bit hash of a tensor's bytes, for
// finding writes that nobody announced. Not for storage, not against malice.
// Reads at memory speed. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace terrace {

// Any change of one to eight neighbouring bytes changes it; other changes do
// with a probability of about 1 - 2^-64.
uint64_t Fingerprint(absl::Span<const std::byte> bytes);

}  // namespace terrace
