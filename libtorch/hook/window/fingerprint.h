// A 64-bit hash of a tensor's bytes tells whether they are what they were, to
// find writes that nobody announced. The hash is not for storage, and does not
// resist malice. Fingerprint is pure and reads at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace terrace {

// Any change within one word, which is eight bytes at a multiple of eight from
// the beginning, changes the fingerprint. Other changes do so with a
// probability of about 1 - 2^-64.
uint64_t Fingerprint(absl::Span<const std::byte> bytes);

}  // namespace terrace
