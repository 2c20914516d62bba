// What files have for a model whose parameters are on the meta device.
//
// One thread at a time; no operation may use the model meanwhile, and it keeps
// its tensors until the end.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/weight_files.h"
#include "libtorch/offload/weights/stored_values.h"
#include "terrace/torch/hook.h"

namespace torch::nn {
class Module;
}

namespace terrace {

class StoredWeights {
 public:
  // Bytes of the model's dtypes that are read, and of all.
  using Progress = std::function<void(int64_t done, int64_t total)>;

  // Compares names and shapes; reads headers only. InvalidArgument: they do not
  // fit each other, with all names. Else as WeightFiles::Open.
  static absl::StatusOr<StoredWeights> Open(const ::torch::nn::Module& model,
                                            const std::string& path);

  // Makes memory of what is on the meta device, the parameters' the hook's,
  // filled storage by storage; then gives it to the model's tensors. Buffers
  // with values of their own are overwritten. After an error, or what
  // `progress` throws, the model is as it was. Errors: as Hook::Manage and
  // StoredValues::Read; a buffer that cannot be written, which is named.
  absl::Status Bring(Hook& hook, const Progress& progress);

 private:
  struct Part {
    std::string name;
    at::Tensor tensor;
    WeightFiles::Tensor stored;
  };
  // Of one storage on the meta device.
  struct Group {
    std::string name;  // of its first tensor
    at::Tensor first;
    bool has_parameter = false;
    std::vector<Part> parts;
    int64_t size_bytes() const;
    // The last one is what a tensor of several names gets.
    void Add(Part part);
  };

  explicit StoredWeights(WeightFiles files) : files_(std::move(files)) {}
  absl::StatusOr<c10::Storage> BringGroup(const Group& group, Hook& hook,
                                          StoredValues& values) const;
  static absl::Status Fill(const Group& group, absl::Span<std::byte> bytes,
                           StoredValues& values);
  absl::StatusOr<std::vector<at::Tensor>> ReadCopies(
      StoredValues& values) const;
  // The buffers' values for these, all of them or none; what could not be given
  // back is told.
  absl::Status SwapCopies(std::vector<at::Tensor>& copies) const;
  static absl::Status Swap(const Part& buffer, at::Tensor& values);

  WeightFiles files_;
  std::vector<Group> groups_;
  std::vector<Part> copies_;  // of buffers that have values
  std::vector<at::Tensor> exchanged_;
};

}  // namespace terrace
