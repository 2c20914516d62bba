#include "libtorch/offload/weights/stored_fit.h"

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "libtorch/offload/weights/storage_exchange.h"
#include "libtorch/stored_dtypes.h"

namespace terrace {
namespace {

std::string ShapeOf(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Span<const int64_t> SizesOf(const at::Tensor& tensor) {
  return {tensor.sizes().data(), tensor.sizes().size()};
}

// Collects faults by their kind, with the names that have them.
class Faults {
 public:
  void Add(const char* kind, std::string name) {
    if (kinds_.empty() || kinds_.back().first != kind) {
      kinds_.push_back({kind, {}});
    }
    kinds_.back().second.push_back(std::move(name));
  }
  // Returns InvalidArgument when there are faults.
  absl::Status Tell(absl::string_view what) const {
    if (kinds_.empty()) return absl::OkStatus();
    std::vector<std::string> texts;
    for (const auto& [kind, names] : kinds_) {
      texts.push_back(absl::StrCat(kind, " ", absl::StrJoin(names, ", ")));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", absl::StrJoin(texts, "; ")));
  }

 private:
  std::vector<std::pair<const char*, std::vector<std::string>>> kinds_;
};

absl::Status CheckOnMeta(const std::vector<ModelEntry>& entries) {
  Faults faults;
  for (const ModelEntry& entry : entries) {
    if (entry.is_parameter && !entry.tensor.is_meta()) {
      faults.Add("there already:",
                 absl::StrCat(entry.name, " on ", entry.tensor.device().str()));
    }
  }
  for (const ModelEntry& entry : entries) {
    if (!entry.tensor.is_meta()) continue;
    const std::string fault = ExchangeFault(entry.tensor);
    if (!fault.empty()) {
      faults.Add("of no use:", absl::StrCat(entry.name, " ", fault));
    }
  }
  return faults.Tell(
      "a checkpoint fills parameters on the meta device "
      "(terrace/torch/meta.h)");
}

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// Returns why the tensor has no place for each value, or "".
std::string FillFault(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return "is not dense";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) == 0) {
      return "has elements in one place";
    }
  }
  return "";
}

bool IsWholeStorage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

// Tensors and storages that the files have all values of.
class Covered {
 public:
  explicit Covered(const std::vector<ModelEntry>& entries) {
    for (const ModelEntry& entry : entries) {
      if (entry.stored == nullptr || !entry.tensor.is_meta()) continue;
      tensors_.insert(entry.tensor.unsafeGetTensorImpl());
      if (IsWholeStorage(entry.tensor)) {
        storages_.insert(StorageOf(entry.tensor));
      }
    }
  }
  bool has(const at::Tensor& tensor) const {
    return tensors_.contains(tensor.unsafeGetTensorImpl()) ||
           storages_.contains(StorageOf(tensor));
  }

 private:
  absl::flat_hash_set<const c10::TensorImpl*> tensors_;
  absl::flat_hash_set<const c10::StorageImpl*> storages_;
};

}  // namespace

std::vector<ModelEntry> EntriesOf(const ::torch::nn::Module& model,
                                  const WeightFiles::Tensors& stored) {
  std::vector<ModelEntry> entries;
  const auto add = [&](const auto& named, bool is_parameter) {
    const auto found = stored.find(named.key());
    entries.push_back({named.key(), named.value(), is_parameter,
                       found == stored.end() ? nullptr : &found->second});
  };
  for (const auto& named : model.named_parameters()) add(named, true);
  for (const auto& named : model.named_buffers()) add(named, false);
  return entries;
}

absl::Status CheckFit(const std::string& path,
                      const std::vector<ModelEntry>& entries,
                      const WeightFiles::Tensors& stored) {
  TERRACE_RETURN_IF_ERROR(CheckOnMeta(entries));
  const Covered covered(entries);
  Faults faults;
  for (const bool is_parameter : {true, false}) {
    for (const ModelEntry& entry : entries) {
      if (entry.is_parameter != is_parameter || !entry.tensor.is_meta() ||
          covered.has(entry.tensor)) {
        continue;
      }
      faults.Add(is_parameter ? "missing" : "missing, of buffers on meta,",
                 entry.name);
    }
  }
  absl::flat_hash_set<std::string> known;
  for (const ModelEntry& entry : entries) known.insert(entry.name);
  for (const auto& [name, tensor] : stored) {
    if (!known.contains(name)) faults.Add("unexpected", name);
  }
  for (const ModelEntry& entry : entries) {
    if (entry.stored == nullptr) continue;
    if (entry.stored->shape != entry.tensor.sizes().vec()) {
      faults.Add("misshapen",
                 absl::StrCat(entry.name, " of ", ShapeOf(entry.stored->shape),
                              " for ", ShapeOf(SizesOf(entry.tensor))));
    }
  }
  for (const ModelEntry& entry : entries) {
    if (entry.stored == nullptr) continue;
    const at::ScalarType type = ScalarTypeOf(entry.stored->dtype);
    if (type != entry.tensor.scalar_type() &&
        !c10::canCast(type, entry.tensor.scalar_type())) {
      faults.Add("not to be converted",
                 absl::StrCat(entry.name, " of ", c10::toString(type), " for ",
                              c10::toString(entry.tensor.scalar_type())));
    }
  }
  for (const ModelEntry& entry : entries) {
    if (entry.stored == nullptr) continue;
    const std::string fault = FillFault(entry.tensor);
    if (!fault.empty()) {
      faults.Add("not to be filled", absl::StrCat(entry.name, " ", fault));
    }
  }
  return faults.Tell(absl::StrCat(path, " does not fit the model"));
}

}  // namespace terrace
