// Brings the values that files have into a model whose parameters are on the
// meta device.
//
// One thread at a time may use it. No operation may use the model meanwhile,
// and the model keeps its tensors until the end.
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
  // Is told how many bytes, in the model's dtypes, are filled, and of how many.
  using Progress = std::function<void(int64_t done, int64_t total)>;

  // Compares names, shapes and dtypes; only headers are read. Returns
  // InvalidArgument, with all names, when the files and the model do not fit
  // each other, else the errors of WeightFiles::Open.
  static absl::StatusOr<StoredWeights> Open(const ::torch::nn::Module& model,
                                            const std::string& path);

  // Makes memory for the tensors on the meta device and fills it, storage by
  // storage; the hook manages that of parameters. Then the model's tensors get
  // this memory, and buffers with values of their own that the files have are
  // overwritten. After an error, or an exception of `progress`, the model is as
  // it was. Errors are those of Hook::Manage and StoredValues::Read, and the
  // error of a buffer that cannot be written, which the message names.
  absl::Status Bring(Hook& hook, const Progress& progress);

 private:
  struct Part {
    std::string name;
    at::Tensor tensor;
    WeightFiles::Tensor stored;
  };
  // The tensors of one storage on the meta device.
  struct Group {
    std::string name;  // of its first tensor
    at::Tensor first;
    bool has_parameter = false;
    std::vector<Part> parts;
    int64_t size_bytes() const;
    // A tensor that is added by several names gets the values of the last one.
    void Add(Part part);
  };

  explicit StoredWeights(WeightFiles files) : files_(std::move(files)) {}
  absl::StatusOr<c10::Storage> BringGroup(const Group& group, Hook& hook,
                                          StoredValues& values) const;
  static absl::Status Fill(const Group& group, absl::Span<std::byte> bytes,
                           StoredValues& values);
  absl::StatusOr<std::vector<at::Tensor>> ReadCopies(
      StoredValues& values) const;
  // Exchanges the buffers' values for these, all of them or none. The error
  // tells of values that could not be given back.
  absl::Status SwapCopies(std::vector<at::Tensor>& copies) const;
  static absl::Status Swap(const Part& buffer, at::Tensor& values);

  WeightFiles files_;
  std::vector<Group> groups_;
  std::vector<Part> copies_;  // buffers with values, which get the files'
  std::vector<at::Tensor> exchanged_;
};

}  // namespace terrace
