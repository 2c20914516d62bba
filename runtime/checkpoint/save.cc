#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/checkpoint/contents.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/tensor_file.h"
#include "terrace/checkpoint.h"

namespace terrace {
namespace {

constexpr int64_t kBlockElements =
    kCheckpointBlockBytes / static_cast<int64_t>(sizeof(float));

// One save into a locked directory. Its files are removed with it, unless they
// were published.
class Save {
 public:
  Save(CheckpointWriterDirectory& directory, const CheckpointContents& contents,
       Time deadline)
      : directory_(directory),
        contents_(contents),
        optimizer_(contents.optimizer),
        deadline_(deadline) {}
  ~Save() {
    for (const std::string& name : files_) directory_.Remove(name);
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  absl::Status Run();
  int64_t size_bytes() const {
    return manifest_.parameters.size_bytes + manifest_.optimizer.size_bytes;
  }

 private:
  // The arrays that a parameter has at this moment.
  struct Held {
    const CheckpointTensor* tensor;
    std::vector<StateArray> arrays;
  };

  absl::StatusOr<TensorFileWriter> MakeFile(
      absl::string_view kind, std::vector<SafetensorsEntry> tensors);
  absl::Status WriteParameters();
  absl::Status WriteOptimizer();
  absl::StatusOr<Held> FindState(const CheckpointTensor& tensor);
  absl::Status WriteState(const Held& held, TensorFileWriter& writer);

  CheckpointWriterDirectory& directory_;
  const CheckpointContents& contents_;
  OffloadedOptimizer* const optimizer_;
  const Time deadline_;
  Manifest manifest_;
  std::vector<std::string> files_;
  std::vector<float> buffer_;
};

absl::Status Save::Run() {
  manifest_.values = contents_.values;
  // Found out before gigabytes are written, rather than after.
  TERRACE_RETURN_IF_ERROR(ManifestText(manifest_).status());
  TERRACE_RETURN_IF_ERROR(WriteParameters());
  if (optimizer_ != nullptr) TERRACE_RETURN_IF_ERROR(WriteOptimizer());
  TERRACE_RETURN_IF_ERROR(directory_.Publish(manifest_));
  files_.clear();
  return directory_.Flush();
}

absl::StatusOr<TensorFileWriter> Save::MakeFile(
    absl::string_view kind, std::vector<SafetensorsEntry> tensors) {
  files_.push_back(NewCheckpointFileName(kind));
  return TensorFileWriter::Create(directory_.fd(), directory_.path(),
                                  files_.back(), std::move(tensors));
}

absl::Status Save::WriteParameters() {
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& tensor : contents_.parameters) {
    entries.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  TERRACE_ASSIGN_OR_RETURN(TensorFileWriter writer,
                           MakeFile("parameters", std::move(entries)));
  for (const CheckpointTensor& tensor : contents_.parameters) {
    const int64_t size_bytes = tensor.count() * DTypeBytes(tensor.dtype);
    const auto* data = static_cast<const std::byte*>(tensor.data);
    for (int64_t from = 0; from < size_bytes; from += kCheckpointBlockBytes) {
      const int64_t bytes = std::min(kCheckpointBlockBytes, size_bytes - from);
      TERRACE_RETURN_IF_ERROR(
          writer.WriteBlock(tensor.name, from / kCheckpointBlockBytes,
                            {data + from, static_cast<size_t>(bytes)}));
    }
  }
  TERRACE_ASSIGN_OR_RETURN(manifest_.parameters, writer.Finish());
  return absl::OkStatus();
}

absl::Status Save::WriteOptimizer() {
  manifest_.has_optimizer = true;
  manifest_.step = optimizer_->step();
  std::vector<Held> all;
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& tensor : contents_.parameters) {
    if (tensor.optimizer_parameter < 0) continue;
    const int64_t steps = optimizer_->parameter_steps()[static_cast<size_t>(
        tensor.optimizer_parameter)];
    manifest_.parameter_steps[tensor.name] = steps;
    if (steps == 0) continue;
    TERRACE_ASSIGN_OR_RETURN(Held held, FindState(tensor));
    for (const StateArray& array : held.arrays) {
      entries.push_back({.name = absl::StrCat(tensor.name, array.suffix),
                         .dtype = DType::kFloat32,
                         .shape = tensor.shape});
    }
    all.push_back(std::move(held));
  }
  TERRACE_ASSIGN_OR_RETURN(TensorFileWriter writer,
                           MakeFile("optimizer", std::move(entries)));
  for (const Held& held : all) {
    TERRACE_RETURN_IF_ERROR(WriteState(held, writer));
  }
  TERRACE_ASSIGN_OR_RETURN(manifest_.optimizer, writer.Finish());
  return absl::OkStatus();
}

// A 16-bit parameter whose moments were loaded without a master has none
// before its next step.
absl::StatusOr<Save::Held> Save::FindState(const CheckpointTensor& tensor) {
  Held held{&tensor, {}};
  float first = 0;
  for (const StateArray& array : kStateArrays) {
    if (array.kind == OffloadedOptimizer::StateKind::kMaster) {
      if (tensor.dtype == DType::kFloat32) continue;
      const size_t some = tensor.count() > 0 ? 1 : 0;
      const absl::Status status = optimizer_->ReadState(
          tensor.optimizer_parameter, array.kind, /*offset=*/0,
          absl::MakeSpan(&first, some), deadline_);
      if (absl::IsFailedPrecondition(status)) continue;
      TERRACE_RETURN_IF_ERROR(status);
    }
    held.arrays.push_back(array);
  }
  return held;
}

// Array by array: a chunk that was only read does not stay in memory, so large
// ranges of one array read the least from its tier.
absl::Status Save::WriteState(const Held& held, TensorFileWriter& writer) {
  const CheckpointTensor& tensor = *held.tensor;
  for (const StateArray& array : held.arrays) {
    const std::string name = absl::StrCat(tensor.name, array.suffix);
    for (int64_t from = 0; from < tensor.count(); from += kBlockElements) {
      buffer_.resize(
          static_cast<size_t>(std::min(kBlockElements, tensor.count() - from)));
      TERRACE_RETURN_IF_ERROR(
          optimizer_->ReadState(tensor.optimizer_parameter, array.kind, from,
                                absl::MakeSpan(buffer_), deadline_));
      TERRACE_RETURN_IF_ERROR(
          writer.WriteBlock(name, from / kBlockElements,
                            {reinterpret_cast<const std::byte*>(buffer_.data()),
                             buffer_.size() * sizeof(float)}));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> SaveCheckpoint(const std::string& directory,
                                       const CheckpointContents& contents,
                                       Time deadline) {
  TERRACE_RETURN_IF_ERROR(
      CheckTensors(contents.parameters, contents.optimizer));
  if (contents.optimizer != nullptr && contents.optimizer->incomplete()) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, ": step ", contents.optimizer->step() + 1,
                     " is incomplete and cannot be saved"));
  }
  TERRACE_ASSIGN_OR_RETURN(const auto opened,
                           CheckpointWriterDirectory::Open(directory));
  opened->RemoveLeftovers();
  Save save(*opened, contents, deadline);
  TERRACE_RETURN_IF_ERROR(save.Run());
  opened->RemoveLeftovers();
  return save.size_bytes();
}

absl::Status PrepareCheckpointDirectory(const std::string& directory) {
  TERRACE_ASSIGN_OR_RETURN(const auto opened,
                           CheckpointWriterDirectory::Open(directory));
  opened->RemoveLeftovers();
  const std::string name = NewCheckpointFileName("parameters");
  const absl::Status status =
      File::Create(opened->fd(), directory, name).status();
  opened->Remove(name);
  return status;
}

}  // namespace terrace
