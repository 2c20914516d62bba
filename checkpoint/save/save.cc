#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "checkpoint/contents.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/memory.h"
#include "checkpoint/save/commit.h"
#include "checkpoint/save/file_list.h"
#include "checkpoint/tensor_file.h"
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

// The files of one part, in a directory that a commit has locked, and the list
// of them. They are removed with this, unless Run() was OK: then they are the
// commit's.
class Part {
 public:
  Part(const File& directory, const CheckpointContents& contents, Time deadline)
      : directory_(directory),
        contents_(contents),
        optimizer_(contents.optimizer),
        end_(SystemClock().FromWall(deadline)) {}
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // The text that tells what was written.
  absl::StatusOr<std::string> Run(CheckpointPart part);

 private:
  // The arrays that a parameter has at this moment.
  struct Held {
    const CheckpointTensor* tensor;
    std::vector<StateArray> arrays;
  };

  absl::Status ListFiles(CheckpointPart part);
  absl::Status CheckListed() const;
  absl::StatusOr<TensorFileWriter> MakeFile(
      const std::string& name, std::vector<SafetensorsEntry> tensors);
  absl::StatusOr<TensorFileWriter> MakeParametersFile();
  absl::Status WriteParameters(TensorFileWriter writer);
  void WriteCounters();
  absl::StatusOr<TensorFileWriter> MakeStateFile(std::vector<Held>* all);
  Held FindState(const CheckpointTensor& tensor) const;
  absl::Status WriteState(std::vector<Held> all, TensorFileWriter& writer);
  absl::Status WriteBlocks(const Held& held, int64_t from, StateReader& reader,
                           TensorFileWriter& writer);

  const File& directory_;
  const CheckpointContents& contents_;
  OffloadedOptimizer* const optimizer_;
  const absl::Time end_;  // by SystemClock()
  Manifest manifest_;
  const std::string parameters_name_ = NewCheckpointFileName("parameters");
  const std::string optimizer_name_ = NewCheckpointFileName("optimizer");
  const std::string list_name_ = NewFileListName();
  std::vector<std::string> files_;  // that are listed, and not the commit's
  std::vector<float> buffers_[std::size(kStateArrays)];
};

Part::~Part() {
  if (files_.empty()) return;
  bool all_gone = true;
  for (const std::string& name : files_) {
    const int result = unlinkat(directory_.fd(), name.c_str(), 0);
    all_gone = all_gone && (result == 0 || errno == ENOENT);
  }
  if (all_gone) unlinkat(directory_.fd(), list_name_.c_str(), 0);
}

absl::StatusOr<std::string> Part::Run(CheckpointPart part) {
  TERRACE_RETURN_IF_ERROR(ListFiles(part));
  WriteCounters();
  // Both, with their headers and room, before either has a tensor.
  std::optional<TensorFileWriter> parameters;
  std::optional<TensorFileWriter> state;
  std::vector<Held> all;
  if (part == CheckpointPart::kParametersAndState) {
    TERRACE_ASSIGN_OR_RETURN(parameters, MakeParametersFile());
  }
  if (optimizer_ != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(state, MakeStateFile(&all));
  }
  if (parameters) {
    TERRACE_RETURN_IF_ERROR(WriteParameters(*std::move(parameters)));
  }
  if (state) {
    TERRACE_RETURN_IF_ERROR(WriteState(std::move(all), *state));
    TERRACE_ASSIGN_OR_RETURN(ManifestFile file, state->Finish());
    manifest_.state.push_back(std::move(file));
  }
  TERRACE_ASSIGN_OR_RETURN(std::string text, ManifestText(manifest_));
  TERRACE_RETURN_IF_ERROR(CheckListed());
  files_.clear();
  return text;
}

absl::Status Part::ListFiles(CheckpointPart part) {
  std::vector<std::string> files;
  if (part == CheckpointPart::kParametersAndState) {
    files.push_back(parameters_name_);
  }
  if (optimizer_ != nullptr) files.push_back(optimizer_name_);
  if (files.empty()) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(
      FileList::Create(directory_, list_name_, files).status());
  files_ = std::move(files);
  return absl::OkStatus();
}

// A commit that ended removed what was listed by then; later files are removed
// here, since nobody knows of them.
absl::Status Part::CheckListed() const {
  if (files_.empty() ||
      faccessat(directory_.fd(), list_name_.c_str(), F_OK, 0) == 0 ||
      errno != ENOENT) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(directory_.path(),
                   ": the save that this was a part of has ended without it"));
}

absl::StatusOr<TensorFileWriter> Part::MakeFile(
    const std::string& name, std::vector<SafetensorsEntry> tensors) {
  return TensorFileWriter::Create(directory_.fd(), directory_.path(), name,
                                  std::move(tensors));
}

absl::StatusOr<TensorFileWriter> Part::MakeParametersFile() {
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& tensor : contents_.parameters) {
    entries.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  return MakeFile(parameters_name_, std::move(entries));
}

absl::Status Part::WriteParameters(TensorFileWriter writer) {
  std::vector<std::byte> copy;
  for (const CheckpointTensor& tensor : contents_.parameters) {
    const int64_t size_bytes = tensor.count() * DTypeBytes(tensor.dtype);
    for (int64_t from = 0; from < size_bytes; from += kCheckpointBlockBytes) {
      const auto bytes = static_cast<size_t>(
          std::min(kCheckpointBlockBytes, size_bytes - from));
      absl::Span<const std::byte> block;
      if (tensor.elements != nullptr) {
        copy.resize(bytes);
        TERRACE_RETURN_IF_ERROR(
            tensor.elements->Read(from, absl::MakeSpan(copy)));
        block = copy;
      } else {
        block = {static_cast<const std::byte*>(tensor.data) + from, bytes};
      }
      TERRACE_RETURN_IF_ERROR(
          writer.WriteBlock(tensor.name, from / kCheckpointBlockBytes, block));
    }
  }
  TERRACE_ASSIGN_OR_RETURN(manifest_.parameters, writer.Finish());
  for (const CheckpointTensor& tensor : contents_.parameters) {
    if (tensor.optimizer_parameter == kOfAnotherRank) {
      manifest_.elsewhere.push_back(tensor.name);
    }
  }
  return absl::OkStatus();
}

// Also of parameters without elements, for which no optimizer is made.
void Part::WriteCounters() {
  for (const CheckpointTensor& tensor : contents_.parameters) {
    if (tensor.optimizer_parameter < 0) continue;
    manifest_.parameter_steps[tensor.name] =
        optimizer_ == nullptr
            ? 0
            : optimizer_->parameter_steps()[static_cast<size_t>(
                  tensor.optimizer_parameter)];
  }
}

absl::StatusOr<TensorFileWriter> Part::MakeStateFile(std::vector<Held>* all) {
  manifest_.step = optimizer_->step();
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& tensor : contents_.parameters) {
    if (tensor.optimizer_parameter < 0) continue;
    if (manifest_.parameter_steps[tensor.name] == 0) continue;
    Held held = FindState(tensor);
    for (const StateArray& array : held.arrays) {
      entries.push_back({.name = absl::StrCat(tensor.name, array.suffix),
                         .dtype = DType::kFloat32,
                         .shape = tensor.shape});
    }
    all->push_back(std::move(held));
  }
  return MakeFile(optimizer_name_, std::move(entries));
}

// A 16-bit parameter whose moments were loaded without a master has none
// before its next step.
Part::Held Part::FindState(const CheckpointTensor& tensor) const {
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

absl::Status Part::WriteState(std::vector<Held> all, TensorFileWriter& writer) {
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
absl::Status Part::WriteBlocks(const Held& held, int64_t from,
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
  TERRACE_RETURN_IF_ERROR(reader.Read(tensor.optimizer_parameter, from, spans,
                                      SystemClock().ToWall(end_)));
  for (size_t i = 0; i < held.arrays.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(writer.WriteBlock(
        absl::StrCat(tensor.name, held.arrays[i].suffix), from / kBlockElements,
        {reinterpret_cast<const std::byte*>(blocks[i].data()),
         count * sizeof(float)}));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const std::string& directory,
                           const CheckpointContents& contents) {
  TERRACE_RETURN_IF_ERROR(
      CheckTensors(contents.parameters, contents.optimizer));
  TERRACE_RETURN_IF_ERROR(CheckAddresses(contents.parameters));
  if (contents.optimizer == nullptr) return absl::OkStatus();
  // Whether the state can be read, before all the parameters are written.
  // Cancelled: it is a parent's, whatever its step.
  const absl::Status readable = contents.optimizer->OpenStateReader().status();
  if (contents.optimizer->incomplete() && !absl::IsCancelled(readable)) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, ": step ", contents.optimizer->step() + 1,
                     " is incomplete and cannot be saved"));
  }
  if (readable.ok()) return readable;
  return Reworded(readable, absl::StrCat(directory, ": ", readable.message()));
}

}  // namespace

absl::StatusOr<std::string> WriteCheckpointPart(
    const std::string& directory, const CheckpointContents& contents,
    CheckpointPart part, Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckContents(directory, contents));
  TERRACE_ASSIGN_OR_RETURN(const File opened, File::OpenDirectory(directory));
  return WithinMemory(
      directory, [&] { return Part(opened, contents, deadline).Run(part); });
}

absl::StatusOr<int64_t> SaveCheckpoint(const std::string& directory,
                                       const CheckpointContents& contents,
                                       Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckContents(directory, contents));
  for (const CheckpointTensor& tensor : contents.parameters) {
    if (tensor.optimizer_parameter != kOfAnotherRank) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": the state of parameter '", tensor.name,
                     "' is another rank's, and a checkpoint has all"));
  }
  TERRACE_ASSIGN_OR_RETURN(const auto commit,
                           BeginCommit(directory, contents.values));
  TERRACE_ASSIGN_OR_RETURN(
      const std::string part,
      WriteCheckpointPart(directory, contents,
                          CheckpointPart::kParametersAndState, deadline));
  return commit->Commit({part});
}

}  // namespace terrace
