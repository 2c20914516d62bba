// An unnamed file of which tensors are mapped: copies of state that may be
// larger than memory, as state_dict() hands them out. To their holders they are
// tensors as others, theirs alone, to be written and kept; the file and its
// room on disk are given back with the last of them, at the latest with the
// process.
//
// Its bytes are reserved when it is made, so that the lack of room is an error
// there and not a signal at the touch of a tensor; a file system that cannot
// reserve says it when the file is written. Not to be used for what must
// outlive the process.
//
// One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/python/outcome.h"
#include "libtorch/residency_limit.h"

namespace terrace {

// Shared by its tensors: which of them lives longest is not known.
class MappedFile : public std::enable_shared_from_this<MappedFile> {
 public:
  // In the one of the directories that has most room. ResourceExhausted: there
  // is none in any; Unimplemented: no directory has files that can be mapped.
  static absl::StatusOr<std::shared_ptr<MappedFile>> Create(
      const std::vector<std::string>& directories, int64_t size_bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // What a tensor of so many bytes takes of a file.
  static int64_t TakenBytes(int64_t tensor_bytes);

  // A float32 tensor in the next bytes; what is in it was never written.
  // ResourceExhausted: the file is smaller.
  absl::StatusOr<at::Tensor> Take(at::IntArrayRef sizes);

  // Elements of such a tensor from `first` on, without mapping what is written,
  // and on their way to the disk when it returns.
  absl::Status Write(const at::Tensor& tensor, int64_t first,
                     absl::Span<const float> values);

 private:
  MappedFile(int fd, std::string directory, absl::Span<std::byte> mapping);
  static absl::StatusOr<std::shared_ptr<MappedFile>> CreateIn(
      const std::string& directory, int64_t size_bytes);

  const int fd_;
  const std::string directory_;  // for messages
  const absl::Span<std::byte> mapping_;
  int64_t taken_bytes_ = 0;
  std::unique_ptr<ResidencyLimit> limit_;
};

// torch.classes.terrace.MappedFile.
class MappedFileBinding final : public ::torch::CustomClassHolder {
 public:
  // For the state of these parameters, as CopyStates makes it. On success the
  // message is the bytes reserved.
  Outcome Open(const std::vector<std::string>& directories,
               const std::vector<at::Tensor>& parameters);
  // The next tensor, for its owner to fill.
  std::tuple<Outcome, at::Tensor> Take(const std::vector<int64_t>& sizes);

  // Null before Open.
  MappedFile* file() const { return file_.get(); }

 private:
  std::shared_ptr<MappedFile> file_;
};

}  // namespace terrace
