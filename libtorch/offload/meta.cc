#include "terrace/torch/meta.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/offload/freed_blocks.h"
#include "libtorch/offload/module_tensors.h"
#include "libtorch/offload/weights/storage_exchange.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

// Returns the names of buffers in the memory that the parameters give back.
std::vector<std::string> BuffersAmong(const ::torch::nn::Module& module,
                                      const ModuleTensors& found) {
  absl::flat_hash_set<const c10::StorageImpl*> given_back;
  for (const at::Tensor& tensor : found.tensors) {
    if (tensor.is_meta() || !tensor.has_storage()) continue;
    given_back.insert(tensor.storage().unsafeGetStorageImpl());
  }
  std::vector<std::string> names;
  for (const auto& named : module.named_buffers()) {
    const at::Tensor& buffer = named.value();
    if (buffer.defined() && buffer.has_storage() &&
        given_back.contains(buffer.storage().unsafeGetStorageImpl())) {
      names.push_back(named.key());
    }
  }
  return names;
}

absl::Status CheckAll(const ::torch::nn::Module& module,
                      const ModuleTensors& found) {
  std::vector<std::string> wrong, offloaded;
  for (size_t i = 0; i < found.tensors.size(); ++i) {
    const std::string fault = ExchangeFault(found.tensors[i]);
    if (!fault.empty()) {
      wrong.push_back(absl::StrCat("'", found.names[i], "' ", fault));
    } else if (IsOffloaded(found.tensors[i])) {
      offloaded.push_back(absl::StrCat("'", found.names[i], "'"));
    }
  }
  for (const std::string& name : BuffersAmong(module, found)) {
    wrong.push_back(
        absl::StrCat("the buffer '", name, "' has the memory of one of them"));
  }
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters cannot move to the meta device: ",
                     absl::StrJoin(wrong, ", ")));
  }
  if (offloaded.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("parameters are offloaded, and cannot move to the meta "
                   "device: ",
                   absl::StrJoin(offloaded, ", ")));
}

}  // namespace

absl::Status MoveParametersToMeta(::torch::nn::Module& module) {
  const ModuleTensors found = TensorsOf(module);
  absl::Status status = CheckAll(module, found);
  if (!status.ok()) return status;
  const c10::Device meta(at::kMeta);
  status = Guarded(meta, [&] {
    absl::flat_hash_map<const c10::StorageImpl*, c10::Storage> storages;
    std::vector<at::Tensor> moved, made;
    for (const at::Tensor& tensor : WithBases(found.tensors)) {
      if (tensor.is_meta()) continue;
      const c10::Storage& old = tensor.storage();
      c10::Storage& storage = storages[old.unsafeGetStorageImpl()];
      if (!storage) {
        storage = MakeStorage(static_cast<int64_t>(old.nbytes()), meta);
      }
      moved.push_back(tensor);
      made.push_back(OverStorage(storage, tensor));
    }
    for (size_t i = 0; i < moved.size(); ++i) Exchange(moved[i], made[i]);
  });
  ReturnFreePages();
  return status;
}

}  // namespace terrace
