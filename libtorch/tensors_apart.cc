#include "libtorch/tensors_apart.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

using Overlap = std::optional<std::pair<size_t, size_t>>;

// The bytes from a tensor's first element to its last one.
struct Extent {
  size_t index = 0;
  uintptr_t start = 0;
  uintptr_t end = 0;
  bool whole = false;  // all of these bytes are its elements
};

absl::Span<const int64_t> SpanOf(at::IntArrayRef values) {
  return {values.data(), values.size()};
}

const void* StorageOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

size_t PlaceOf(const at::Tensor& tensor) {
  const bool is_offloaded = IsOffloaded(tensor);
  return absl::HashOf(
      is_offloaded ? StorageOf(tensor) : tensor.const_data_ptr(),
      is_offloaded ? tensor.storage_offset() : 0, tensor.element_size(),
      SpanOf(tensor.sizes()), SpanOf(tensor.strides()));
}

// Where elements begin. What is offloaded has no address: each such storage
// gets one of its own here, beyond those that there are.
class Addresses {
 public:
  uintptr_t Of(const at::Tensor& tensor) {
    if (!IsOffloaded(tensor)) {
      return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    }
    const auto [found, is_new] =
        of_storages_.try_emplace(StorageOf(tensor), next_);
    if (is_new) next_ += (tensor.storage().nbytes() / kGap + 1) * kGap;
    return found->second + static_cast<uintptr_t>(tensor.storage_offset() *
                                                  tensor.element_size());
  }

 private:
  static constexpr uintptr_t kGap = 4096;

  std::map<const void*, uintptr_t> of_storages_;
  uintptr_t next_ = uintptr_t{1} << 62;
};

Extent ExtentOf(const at::Tensor& tensor, size_t index, uintptr_t start) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const int64_t bytes = (last + 1) * tensor.element_size();
  return {index, start, start + static_cast<uintptr_t>(bytes),
          bytes == static_cast<int64_t>(tensor.nbytes())};
}

// A byte for each element of the least size between two addresses.
class ElementMask {
 public:
  ElementMask(uintptr_t start, uintptr_t end, int64_t element_bytes)
      : start_(start),
        element_bytes_(element_bytes),
        taken_(
            at::zeros({(static_cast<int64_t>(end - start) + element_bytes - 1) /
                       element_bytes},
                      at::TensorOptions(at::kBool).device(at::kCPU))) {}

  // Whether any element was taken before; takes them.
  bool Take(const at::Tensor& tensor, const Extent& extent) {
    at::Tensor elements = Of(tensor, extent);
    const bool taken = elements.any().item<bool>();
    elements.fill_(true);
    return taken;
  }
  void Clear() { taken_.zero_(); }

 private:
  at::Tensor Of(const at::Tensor& tensor, const Extent& extent) {
    const int64_t parts = tensor.element_size() / element_bytes_;
    std::vector<int64_t> sizes = tensor.sizes().vec();
    std::vector<int64_t> strides = tensor.strides().vec();
    for (int64_t& stride : strides) stride *= parts;
    sizes.push_back(parts);
    strides.push_back(1);
    return taken_.as_strided(
        sizes, strides,
        static_cast<int64_t>(extent.start - start_) / element_bytes_);
  }

  const uintptr_t start_;
  const int64_t element_bytes_;
  at::Tensor taken_;
};

// Among extents that overlap, in the order of their starts.
Overlap FindAmong(absl::Span<const Extent> extents,
                  absl::Span<const at::Tensor> tensors) {
  uintptr_t end = 0;
  int64_t element_bytes = 8;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i > 0 && extents[i].whole && extents[i - 1].whole &&
        extents[i].start < extents[i - 1].end) {
      return std::minmax(extents[i - 1].index, extents[i].index);
    }
    end = std::max(end, extents[i].end);
    element_bytes =
        std::min(element_bytes, tensors[extents[i].index].element_size());
  }
  // What is not aligned to its elements is told apart by bytes.
  for (const Extent& extent : extents) {
    if ((extent.start - extents.front().start) %
        static_cast<uintptr_t>(element_bytes)) {
      element_bytes = 1;
    }
  }
  ElementMask mask(extents.front().start, end, element_bytes);
  for (size_t i = 0; i < extents.size(); ++i) {
    const at::Tensor& tensor = tensors[extents[i].index];
    if (!mask.Take(tensor, extents[i])) continue;
    for (size_t before = 0; before < i; ++before) {
      mask.Clear();
      mask.Take(tensors[extents[before].index], extents[before]);
      if (mask.Take(tensor, extents[i])) {
        return std::minmax(extents[before].index, extents[i].index);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Overlap TensorsApart::FindOverlap(absl::Span<const at::Tensor> tensors) {
  std::vector<size_t> places;
  places.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) places.push_back(PlaceOf(tensor));
  if (places == known_) return std::nullopt;
  std::vector<Extent> extents;
  Addresses addresses;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    extents.push_back(ExtentOf(tensors[i], i, addresses.Of(tensors[i])));
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) {
              return std::make_pair(a.start, a.index) <
                     std::make_pair(b.start, b.index);
            });
  const at::NoGradGuard without_graph;
  for (size_t first = 0, next = 0; first < extents.size(); first = next) {
    uintptr_t end = extents[first].end;
    for (next = first + 1; next < extents.size() && extents[next].start < end;
         ++next) {
      end = std::max(end, extents[next].end);
    }
    if (next == first + 1) continue;
    const Overlap overlap = FindAmong(
        absl::MakeConstSpan(extents).subspan(first, next - first), tensors);
    if (overlap) return overlap;
  }
  known_ = std::move(places);
  return std::nullopt;
}

absl::Status OverlapError(const std::string& first, const std::string& second) {
  return absl::InvalidArgumentError(absl::StrCat(
      "parameters ", first, " and ", second,
      " overlap in memory: give one of them, or tie the modules with one "
      "Parameter, as in head.weight = embedding.weight"));
}

}  // namespace terrace
