#include "libtorch/offload/weights/stored_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/offload/weights/storage_exchange.h"
#include "libtorch/offload/weights/stored_fit.h"

namespace terrace {

int64_t StoredWeights::Group::size_bytes() const {
  return static_cast<int64_t>(first.storage().nbytes());
}

void StoredWeights::Group::Add(Part part) {
  for (Part& known : parts) {
    if (known.tensor.is_same(part.tensor)) {
      known = std::move(part);
      return;
    }
  }
  parts.push_back(std::move(part));
}

absl::StatusOr<StoredWeights> StoredWeights::Open(
    const ::torch::nn::Module& model, const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(path));
  StoredWeights weights(std::move(files));
  const WeightFiles::Tensors& stored = weights.files_.tensors();
  const std::vector<ModelEntry> entries = EntriesOf(model, stored);
  TERRACE_RETURN_IF_ERROR(CheckFit(path, entries, stored));
  std::vector<at::Tensor> on_meta;
  absl::flat_hash_map<const c10::StorageImpl*, size_t> group_of;
  for (const ModelEntry& entry : entries) {
    Part part = {entry.name, entry.tensor, {}};
    if (entry.stored != nullptr) part.stored = *entry.stored;
    if (!entry.tensor.is_meta()) {
      if (entry.stored != nullptr) weights.copies_.push_back(std::move(part));
      continue;
    }
    on_meta.push_back(entry.tensor);
    const auto [known, is_new] = group_of.emplace(
        entry.tensor.storage().unsafeGetStorageImpl(), weights.groups_.size());
    if (is_new) {
      weights.groups_.push_back({entry.name, entry.tensor, false, {}});
    }
    Group& group = weights.groups_[known->second];
    group.has_parameter = group.has_parameter || entry.is_parameter;
    if (entry.stored != nullptr) group.Add(std::move(part));
  }
  weights.exchanged_ = WithBases(on_meta);
  return weights;
}

absl::Status StoredWeights::Bring(Hook& hook, const Progress& progress) {
  StoredValues values(files_);
  int64_t total = 0, done = 0;
  for (const Group& group : groups_) total += group.size_bytes();
  absl::flat_hash_map<const c10::StorageImpl*, c10::Storage> storages;
  for (const Group& group : groups_) {
    TERRACE_ASSIGN_OR_RETURN(
        storages[group.first.storage().unsafeGetStorageImpl()],
        BringGroup(group, hook, values));
    done += group.size_bytes();
    if (progress != nullptr) progress(done, total);
  }
  TERRACE_ASSIGN_OR_RETURN(std::vector<at::Tensor> copies, ReadCopies(values));
  std::vector<at::Tensor> made;
  TERRACE_RETURN_IF_ERROR(Guarded(at::kCPU, [&] {
    for (const at::Tensor& tensor : exchanged_) {
      made.push_back(OverStorage(
          storages.at(tensor.storage().unsafeGetStorageImpl()), tensor));
    }
  }));
  TERRACE_RETURN_IF_ERROR(SwapCopies(copies));
  return Guarded(at::kCPU, [&] {
    const c10::InferenceMode mode;
    for (size_t i = 0; i < exchanged_.size(); ++i) {
      Exchange(exchanged_[i], made[i]);
    }
  });
}

// After an error values go back in reverse order, as two buffers may share
// memory.
absl::Status StoredWeights::SwapCopies(std::vector<at::Tensor>& copies) const {
  for (size_t i = 0; i < copies.size(); ++i) {
    absl::Status status = Swap(copies_[i], copies[i]);
    if (status.ok()) continue;
    while (i-- > 0) {
      const absl::Status back = Swap(copies_[i], copies[i]);
      if (back.ok()) continue;
      status = Reworded(
          status, absl::StrCat(status.message(), "; and the old values of ",
                               back.message()));
    }
    return status;
  }
  return absl::OkStatus();
}

absl::Status StoredWeights::Swap(const Part& buffer, at::Tensor& values) {
  const absl::Status status = Guarded(at::kCPU, [&] {
    // In this mode buffers can be written that were made in it or outside of
    // it.
    const c10::InferenceMode mode;
    const at::Tensor before = buffer.tensor.clone();
    buffer.tensor.copy_(values);
    values = before;
  });
  if (status.ok()) return status;
  return Reworded(status,
                  absl::StrCat("'", buffer.name,
                               "' cannot be written: ", status.message()));
}

absl::StatusOr<c10::Storage> StoredWeights::BringGroup(
    const Group& group, Hook& hook, StoredValues& values) const {
  c10::Storage storage;
  at::Tensor whole;
  // The storage is not written to here, so that it takes no memory before the
  // hook has it.
  TERRACE_RETURN_IF_ERROR(Guarded(at::kCPU, [&] {
    storage = MakeStorage(group.size_bytes(), at::kCPU);
    whole = OverStorage(storage, group.first);
  }));
  if (group.size_bytes() == 0) return storage;
  if (!group.has_parameter) {
    TERRACE_RETURN_IF_ERROR(
        Fill(group,
             {static_cast<std::byte*>(storage.mutable_data()),
              static_cast<size_t>(group.size_bytes())},
             values));
    return storage;
  }
  TERRACE_RETURN_IF_ERROR(hook.Manage({{group.name, whole}}));
  TERRACE_ASSIGN_OR_RETURN(const Lease lease,
                           hook.MakeLease(whole, Hook::Access::kWrite));
  TERRACE_RETURN_IF_ERROR(Fill(group, lease.data(), values));
  return storage;
}

absl::Status StoredWeights::Fill(const Group& group,
                                 absl::Span<std::byte> bytes,
                                 StoredValues& values) {
  for (const auto& [name, tensor, stored] : group.parts) {
    const int64_t offset = tensor.storage_offset() * tensor.element_size();
    at::Tensor target;
    TERRACE_RETURN_IF_ERROR(Guarded(at::kCPU, [&] {
      target = at::from_blob(bytes.data() + offset, tensor.sizes(),
                             tensor.strides(), tensor.scalar_type());
    }));
    const absl::Status read = values.Read(stored, target);
    if (!read.ok()) {
      return Reworded(read, absl::StrCat("'", name, "': ", read.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<at::Tensor>> StoredWeights::ReadCopies(
    StoredValues& values) const {
  std::vector<at::Tensor> copies;
  for (const auto& [name, tensor, stored] : copies_) {
    TERRACE_RETURN_IF_ERROR(Guarded(at::kCPU, [&] {
      copies.push_back(at::empty(tensor.sizes(), tensor.scalar_type()));
    }));
    const absl::Status read = values.Read(stored, copies.back());
    if (!read.ok()) {
      return Reworded(read, absl::StrCat("'", name, "': ", read.message()));
    }
  }
  return copies;
}

}  // namespace terrace
