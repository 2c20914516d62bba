#include <algorithm>
#include <iterator>
#include <memory>
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

absl::Span<float>& SpanOf(OffloadedOptimizer::StateKind kind,
                          StateSpans& spans) {
  using Kind = OffloadedOptimizer::StateKind;
  return kind == Kind::kMaster        ? spans.master
         : kind == Kind::kFirstMoment ? spans.first_moment
                                      : spans.second_moment;
}

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
  Held FindState(const CheckpointTensor& tensor) const;
  absl::Status WriteState(std::vector<Held> all, TensorFileWriter& writer);
  absl::Status WriteBlocks(const Held& held, int64_t from, StateReader& reader,
                           TensorFileWriter& writer);

  CheckpointWriterDirectory& directory_;
  const CheckpointContents& contents_;
  OffloadedOptimizer* const optimizer_;
  const Time deadline_;
  Manifest manifest_;
  std::vector<std::string> files_;
  std::vector<float> buffers_[std::size(kStateArrays)];
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
    Held held = FindState(tensor);
    for (const StateArray& array : held.arrays) {
      entries.push_back({.name = absl::StrCat(tensor.name, array.suffix),
                         .dtype = DType::kFloat32,
                         .shape = tensor.shape});
    }
    all.push_back(std::move(held));
  }
  TERRACE_ASSIGN_OR_RETURN(TensorFileWriter writer,
                           MakeFile("optimizer", std::move(entries)));
  TERRACE_RETURN_IF_ERROR(WriteState(std::move(all), writer));
  TERRACE_ASSIGN_OR_RETURN(manifest_.optimizer, writer.Finish());
  return absl::OkStatus();
}

// A 16-bit parameter whose moments were loaded without a master has none
// before its next step.
Save::Held Save::FindState(const CheckpointTensor& tensor) const {
  Held held{&tensor, {}};
  for (const StateArray& array : kStateArrays) {
    const bool is_master = array.kind == OffloadedOptimizer::StateKind::kMaster;
    if (is_master &&
        !optimizer_->HasState(tensor.optimizer_parameter, array.kind)) {
      continue;
    }
    held.arrays.push_back(array);
  }
  return held;
}

absl::Status Save::WriteState(std::vector<Held> all, TensorFileWriter& writer) {
  // As they lie in the chunks, each of which is then read once.
  std::sort(all.begin(), all.end(), [](const Held& left, const Held& right) {
    return left.tensor->optimizer_parameter < right.tensor->optimizer_parameter;
  });
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> reader,
                           optimizer_->OpenStateReader());
  for (const Held& held : all) {
    for (int64_t from = 0; from < held.tensor->count();
         from += kBlockElements) {
      TERRACE_RETURN_IF_ERROR(WriteBlocks(held, from, *reader, writer));
    }
  }
  return absl::OkStatus();
}

// One block of each array, from element `from` on.
absl::Status Save::WriteBlocks(const Held& held, int64_t from,
                               StateReader& reader, TensorFileWriter& writer) {
  const CheckpointTensor& tensor = *held.tensor;
  const auto count =
      static_cast<size_t>(std::min(kBlockElements, tensor.count() - from));
  StateSpans spans;
  std::vector<absl::Span<float>> blocks;
  for (size_t i = 0; i < held.arrays.size(); ++i) {
    buffers_[i].resize(count);
    blocks.push_back(absl::MakeSpan(buffers_[i]));
    SpanOf(held.arrays[i].kind, spans) = blocks.back();
  }
  TERRACE_RETURN_IF_ERROR(
      reader.Read(tensor.optimizer_parameter, from, spans, deadline_));
  for (size_t i = 0; i < held.arrays.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(writer.WriteBlock(
        absl::StrCat(tensor.name, held.arrays[i].suffix), from / kBlockElements,
        {reinterpret_cast<const std::byte*>(blocks[i].data()),
         count * sizeof(float)}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> SaveCheckpoint(const std::string& directory,
                                       const CheckpointContents& contents,
                                       Time deadline) {
  TERRACE_RETURN_IF_ERROR(
      CheckTensors(contents.parameters, contents.optimizer));
  for (const CheckpointTensor& tensor : contents.parameters) {
    if (tensor.optimizer_parameter != kOfAnotherRank) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": the state of parameter '", tensor.name,
                     "' is another rank's, and a checkpoint has all"));
  }
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
