#include "libtorch/tensor_elements.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/take.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

// Elements out of order are found by their numbers, of 8 bytes each: so many
// at a time.
constexpr int64_t kPiece = 1 << 17;

// The part of a block in CPU memory, as elements of that dtype.
at::Tensor Block(void* bytes, int64_t count, at::ScalarType dtype) {
  return at::from_blob(bytes, {count}, at::TensorOptions(dtype));
}

// Calls work(places, part of the block) for pieces of the `block`, whose first
// element is number `first`.
template <typename Work>
void ForEachPiece(const at::Tensor& tensor, int64_t first,
                  const at::Tensor& block, const Work& work) {
  for (int64_t at = 0; at < block.numel(); at += kPiece) {
    const int64_t count = std::min(kPiece, block.numel() - at);
    work(at::arange(first + at, first + at + count,
                    at::TensorOptions(at::kLong).device(tensor.device())),
         block.narrow(0, at, count));
  }
}

// The same elements by an index in each dimension.
c10::List<std::optional<at::Tensor>> Indices(at::IntArrayRef sizes,
                                             at::Tensor places) {
  std::vector<at::Tensor> indices(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    indices[i] = at::remainder(places, sizes[i]);
    places = at::floor_divide(places, sizes[i]);
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& index : indices) list.push_back(index);
  return list;
}

// Integers as wide as the elements: those copy what there are, and all that
// moves them knows them.
at::ScalarType IntegerFor(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

}  // namespace

TensorElements::TensorElements(const at::Tensor& tensor)
    : tensor_(tensor.detach().view(IntegerFor(tensor))) {}

absl::Status TensorElements::Read(int64_t offset,
                                  absl::Span<std::byte> target) {
  return Guarded(tensor_.device(), [&] {
    const at::NoGradGuard without_graph;
    const auto size = static_cast<int64_t>(tensor_.element_size());
    const int64_t first = offset / size;
    at::Tensor block =
        Block(target.data(), static_cast<int64_t>(target.size()) / size,
              tensor_.scalar_type());
    if (tensor_.is_contiguous()) {
      block.copy_(tensor_.view({-1}).narrow(0, first, block.numel()));
      return;
    }
    ForEachPiece(tensor_, first, block,
                 [&](const at::Tensor& places, at::Tensor part) {
                   part.copy_(at::take(tensor_, places));
                 });
  });
}

absl::Status TensorElements::Write(int64_t offset,
                                   absl::Span<const std::byte> source) {
  return Guarded(tensor_.device(), [&] {
    const at::NoGradGuard without_graph;
    const auto size = static_cast<int64_t>(tensor_.element_size());
    const int64_t first = offset / size;
    const at::Tensor block = Block(const_cast<std::byte*>(source.data()),
                                   static_cast<int64_t>(source.size()) / size,
                                   tensor_.scalar_type());
    if (tensor_.is_contiguous()) {
      tensor_.view({-1}).narrow(0, first, block.numel()).copy_(block);
      return;
    }
    at::Tensor target = tensor_;
    // Not put_, which LibTorch refuses where it is told to be deterministic.
    ForEachPiece(tensor_, first, block,
                 [&](const at::Tensor& places, const at::Tensor& part) {
                   at::index_put_(target, Indices(tensor_.sizes(), places),
                                  part.to(tensor_.device()));
                 });
  });
}

}  // namespace terrace
