#include "runtime/motion/seal.h"

#include "kernels/checksum.h"

namespace terrace {

ExtentHeader HeaderOf(const Tensor& tensor, uint64_t path_id,
                      const Extent& place, uint64_t generation) {
  ExtentHeader header;
  header.path_id = path_id;
  header.own_offset = place.offset;
  header.tensor_id = tensor.id.value;
  header.generation = generation;
  header.payload_bytes = tensor.spec.size_bytes;
  header.global_offset = tensor.spec.global_offset;
  header.name = tensor.spec.name;
  return header;
}

void Seal(ExtentHeader header, absl::Span<std::byte> copy) {
  header.payload_hash =
      Checksum(copy.data() + kTensorHeaderBytes, header.payload_bytes);
  EncodeExtentHeader(header, copy.subspan(0, kTensorHeaderBytes));
}

absl::Status CheckSeal(absl::Span<const std::byte> copy,
                       ExtentHeader expected) {
  ExtentHeader found;
  absl::Status status =
      DecodeExtentHeader(copy.subspan(0, kTensorHeaderBytes), &found);
  if (!status.ok()) return status;
  expected.payload_hash =
      Checksum(copy.data() + kTensorHeaderBytes, expected.payload_bytes);
  return MatchExtentHeader(found, expected);
}

}  // namespace terrace
