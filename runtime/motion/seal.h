// The header in front of every copy that rests on a disk: made before it is
// written, compared after it was read. The executor's tasks call these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/extent.h"
#include "tiers/extent_header.h"

namespace terrace {

// Of the tensor's contents of `generation` at `place` of the path `path_id`;
// the payload's hash is the seal's to fill in.
ExtentHeader HeaderOf(const Tensor& tensor, uint64_t path_id,
                      const Extent& place, uint64_t generation);

// Hashes the copy's payload and encodes the header in front of it.
void Seal(ExtentHeader header, absl::Span<std::byte> copy);

// DataLoss: the copy is not what the header says.
absl::Status CheckSeal(absl::Span<const std::byte> copy, ExtentHeader expected);

}  // namespace terrace
