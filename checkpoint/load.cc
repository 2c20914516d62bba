#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "checkpoint/contents.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/memory.h"
#include "checkpoint/source_file.h"
#include "terrace/checkpoint.h"

namespace terrace {
namespace {

// How often a save may replace the checkpoint while it is being opened.
constexpr int kOpenTries = 100;

absl::Span<const float>& ValuesOf(OffloadedOptimizer::StateKind kind,
                                  StateValues& values) {
  using Kind = OffloadedOptimizer::StateKind;
  return kind == Kind::kMaster        ? values.master
         : kind == Kind::kFirstMoment ? values.first_moment
                                      : values.second_moment;
}

class OpenCheckpoint final : public Checkpoint {
 public:
  OpenCheckpoint(std::string directory, CheckpointFiles files,
                 CheckpointValues values);

  int64_t step() const override { return manifest().step; }
  bool has_optimizer() const override { return files_.has_state(); }
  int64_t size_bytes() const override { return manifest().size_bytes(); }
  absl::Span<const CheckpointTensor> parameters() const override {
    return tensors_;
  }
  const CheckpointValues& values() const override { return values_; }

  absl::Status Verify() override;
  absl::Status Fits(absl::Span<const CheckpointTensor> parameters,
                    const OffloadedOptimizer* optimizer) const override {
    return Check(parameters, optimizer).status();
  }
  absl::Status Load(absl::Span<const CheckpointTensor> parameters,
                    OffloadedOptimizer* optimizer, Time deadline) override;

 private:
  struct Array {
    OffloadedOptimizer::StateKind kind;
    CheckpointFiles::Found found;
  };
  // What the optimizer's state is to become.
  struct State {
    OffloadedOptimizer& optimizer;
    std::vector<int64_t> steps;  // by its parameters
    absl::Time end;              // by SystemClock()
  };

  const Manifest& manifest() const { return files_.manifest(); }
  absl::Status CheckParameters(
      absl::Span<const CheckpointTensor> parameters) const;
  // Both return the steps that the optimizer's parameters are to have.
  absl::StatusOr<std::vector<int64_t>> CheckOptimizer(
      absl::Span<const CheckpointTensor> parameters,
      const OffloadedOptimizer& optimizer) const;
  absl::StatusOr<std::vector<int64_t>> Check(
      absl::Span<const CheckpointTensor> parameters,
      const OffloadedOptimizer* optimizer) const;
  absl::Status LoadAll(absl::Span<const CheckpointTensor> parameters,
                       const State* state);
  absl::Status LoadOptimizer(absl::Span<const CheckpointTensor> parameters,
                             const State& state);
  absl::Status LoadState(const CheckpointTensor& tensor, StateWriter& writer,
                         absl::Time end);
  absl::Status LoadParameters(absl::Span<const CheckpointTensor> parameters);

  const std::string directory_;
  const CheckpointFiles files_;
  const CheckpointValues values_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<float> buffer_;
};

OpenCheckpoint::OpenCheckpoint(std::string directory, CheckpointFiles files,
                               CheckpointValues values)
    : directory_(std::move(directory)),
      files_(std::move(files)),
      values_(std::move(values)) {
  for (const SafetensorsEntry& entry : files_.parameters().tensors()) {
    tensors_.push_back(
        {.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
}

absl::Status OpenCheckpoint::Verify() {
  const absl::Status status =
      WithinMemory(directory_, [&] { return files_.Verify(); });
  files_.DropCache();
  return status;
}

absl::Status OpenCheckpoint::CheckParameters(
    absl::Span<const CheckpointTensor> parameters) const {
  const auto here = [this](const SafetensorsEntry& entry) {
    return absl::StrCat("parameter '", entry.name, "' of ", directory_, ", ",
                        ShapeText(entry.dtype, entry.shape));
  };
  for (const CheckpointTensor& tensor : parameters) {
    const SafetensorsEntry* entry = files_.parameters().Find(tensor.name);
    const std::string theirs =
        absl::StrCat("parameter '", tensor.name, "' of the model, ",
                     ShapeText(tensor.dtype, tensor.shape));
    if (entry == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_, " is of another model: it lacks ", theirs));
    }
    if (entry->dtype != tensor.dtype || entry->shape != tensor.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_, " is of another model: ", here(*entry),
                       ", is not ", theirs));
    }
  }
  if (parameters.size() == files_.parameters().tensors().size()) {
    return absl::OkStatus();
  }
  // Names are unique on both sides, so there is one that is only here.
  for (const SafetensorsEntry& entry : files_.parameters().tensors()) {
    const bool known = std::any_of(
        parameters.begin(), parameters.end(),
        [&](const CheckpointTensor& t) { return t.name == entry.name; });
    if (known) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(directory_, " is of another model: the model of ",
                     parameters.size(), " parameters lacks ", here(entry)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> OpenCheckpoint::CheckOptimizer(
    absl::Span<const CheckpointTensor> parameters,
    const OffloadedOptimizer& optimizer) const {
  if (!files_.has_state()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_, ": holds no optimizer's state"));
  }
  std::vector<int64_t> steps(optimizer.parameters().size());
  for (const CheckpointTensor& tensor : parameters) {
    const auto found = manifest().parameter_steps.find(tensor.name);
    // What has no state there has none afterwards.
    if (found == manifest().parameter_steps.end()) continue;
    if (tensor.optimizer_parameter == -1) {
      if (found->second == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", tensor.name,
          "' is not the optimizer's, but was stepped in ", directory_));
    }
    if (tensor.optimizer_parameter != kOfAnotherRank) {
      steps[static_cast<size_t>(tensor.optimizer_parameter)] = found->second;
    }
  }
  return steps;
}

absl::StatusOr<std::vector<int64_t>> OpenCheckpoint::Check(
    absl::Span<const CheckpointTensor> parameters,
    const OffloadedOptimizer* optimizer) const {
  TERRACE_RETURN_IF_ERROR(CheckTensors(parameters, optimizer));
  TERRACE_RETURN_IF_ERROR(CheckParameters(parameters));
  if (optimizer == nullptr) return std::vector<int64_t>();
  return CheckOptimizer(parameters, *optimizer);
}

absl::Status OpenCheckpoint::LoadState(const CheckpointTensor& tensor,
                                       StateWriter& writer, absl::Time end) {
  std::vector<Array> arrays;
  for (const StateArray& array : kStateArrays) {
    const CheckpointFiles::Found found = files_.FindState(tensor.name, array);
    if (found.entry != nullptr) arrays.push_back({array.kind, found});
  }
  if (arrays.empty()) return absl::OkStatus();
  const int64_t block_elements =
      manifest().block_bytes / static_cast<int64_t>(sizeof(float));
  for (int64_t from = 0; from < tensor.count(); from += block_elements) {
    const int64_t count = std::min(block_elements, tensor.count() - from);
    buffer_.resize(arrays.size() * static_cast<size_t>(count));
    StateValues values;
    for (size_t i = 0; i < arrays.size(); ++i) {
      float* block = buffer_.data() + i * static_cast<size_t>(count);
      TERRACE_RETURN_IF_ERROR(arrays[i].found.file->ReadBlock(
          *arrays[i].found.entry, from / block_elements,
          {reinterpret_cast<std::byte*>(block),
           static_cast<size_t>(count) * sizeof(float)}));
      ValuesOf(arrays[i].kind, values) = {block, static_cast<size_t>(count)};
    }
    TERRACE_RETURN_IF_ERROR(writer.Write(tensor.optimizer_parameter, from,
                                         values, SystemClock().ToWall(end)));
  }
  for (const Array& array : arrays) {
    array.found.file->DropCache(*array.found.entry);
  }
  return absl::OkStatus();
}

absl::Status OpenCheckpoint::LoadOptimizer(
    absl::Span<const CheckpointTensor> parameters, const State& state) {
  std::vector<const CheckpointTensor*> own;
  for (const CheckpointTensor& tensor : parameters) {
    if (tensor.optimizer_parameter >= 0) own.push_back(&tensor);
  }
  // As they lie in the chunks, each of which is then written once.
  std::sort(own.begin(), own.end(), [](const auto* left, const auto* right) {
    return left->optimizer_parameter < right->optimizer_parameter;
  });
  TERRACE_ASSIGN_OR_RETURN(
      const std::unique_ptr<StateWriter> writer,
      state.optimizer.OpenStateWriter(SystemClock().ToWall(state.end)));
  // Once: a vector that grows has its bytes twice.
  buffer_.reserve(static_cast<size_t>(manifest().block_bytes) / sizeof(float) *
                  std::size(kStateArrays));
  for (const CheckpointTensor* tensor : own) {
    TERRACE_RETURN_IF_ERROR(LoadState(*tensor, *writer, state.end));
  }
  return writer->Commit(manifest().step, state.steps);
}

absl::Status OpenCheckpoint::LoadParameters(
    absl::Span<const CheckpointTensor> parameters) {
  std::vector<std::byte> copy;
  for (const CheckpointTensor& tensor : parameters) {
    const SafetensorsEntry& entry = *files_.parameters().Find(tensor.name);
    for (int64_t i = 0; i < files_.parameters().Blocks(entry); ++i) {
      const auto bytes =
          static_cast<size_t>(files_.parameters().BlockSize(entry, i));
      const int64_t from = i * manifest().block_bytes;
      absl::Span<std::byte> block;
      if (tensor.elements != nullptr) {
        copy.resize(bytes);
        block = absl::MakeSpan(copy);
      } else {
        block = {static_cast<std::byte*>(tensor.data) + from, bytes};
      }
      const absl::Status status =
          files_.parameters().ReadBlock(entry, i, block);
      if (!status.ok()) {
        return Reworded(
            status,
            absl::StrCat(status.message(),
                         "; it was whole a moment ago, and parameters up to "
                         "this one are overwritten"));
      }
      if (tensor.elements == nullptr) continue;
      TERRACE_RETURN_IF_ERROR(tensor.elements->Write(from, block));
    }
  }
  return absl::OkStatus();
}

absl::Status OpenCheckpoint::LoadAll(
    absl::Span<const CheckpointTensor> parameters, const State* state) {
  // The parameters are changed last, when nothing can fail any more but a
  // file that changes meanwhile; the state can be forgotten, they cannot.
  TERRACE_RETURN_IF_ERROR(files_.parameters().Verify());
  if (state != nullptr) {
    TERRACE_RETURN_IF_ERROR(LoadOptimizer(parameters, *state));
  }
  return LoadParameters(parameters);
}

absl::Status OpenCheckpoint::Load(absl::Span<const CheckpointTensor> parameters,
                                  OffloadedOptimizer* optimizer,
                                  Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<int64_t> steps,
                           Check(parameters, optimizer));
  TERRACE_RETURN_IF_ERROR(CheckAddresses(parameters));
  std::optional<State> state;
  if (optimizer != nullptr) {
    state.emplace(
        State{*optimizer, std::move(steps), SystemClock().FromWall(deadline)});
  }
  absl::Status status = WithinMemory(directory_, [&] {
    return LoadAll(parameters, state ? &*state : nullptr);
  });
  files_.DropCache();
  buffer_ = {};
  if (status.ok() || !state) return status;
  const absl::Status reset = optimizer->Reset(SystemClock().ToWall(state->end));
  if (reset.ok()) return status;
  return Reworded(status, absl::StrCat(status.message(),
                                       "; nor could the optimizer be reset: ",
                                       reset.message()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFiles(const File& directory,
                                                      const std::string& text) {
  TERRACE_ASSIGN_OR_RETURN(CheckpointFiles files,
                           CheckpointFiles::Open(directory, text, kManifestName,
                                                 SourceFile::MostOpen()));
  TERRACE_ASSIGN_OR_RETURN(CheckpointValues values, files.ReadValues());
  return std::make_unique<OpenCheckpoint>(directory.path(), std::move(files),
                                          std::move(values));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDirectory(
    const std::string& directory) {
  TERRACE_ASSIGN_OR_RETURN(const File opened, File::OpenDirectory(directory));
  std::string text;
  for (int i = 0; i < kOpenTries; ++i) {
    auto read = ReadManifestText(opened);
    if (absl::IsNotFound(read.status())) {
      return Reworded(
          read.status(),
          absl::StrCat(directory, ": there is no checkpoint, as there is no ",
                       kManifestName));
    }
    if (!read.ok()) return read.status();
    auto checkpoint = OpenFiles(opened, *read);
    if (!absl::IsNotFound(checkpoint.status())) return checkpoint;
    // A save may have replaced it in between; if not, the file is gone.
    if (*read == text) {
      return Reworded(checkpoint.status(), absl::StatusCode::kDataLoss,
                      checkpoint.status().message());
    }
    text = *std::move(read);
  }
  return absl::UnavailableError(absl::StrCat(
      directory, ": was replaced ", kOpenTries, " times while it was opened"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& directory) {
  return WithinMemory(directory, [&] { return OpenDirectory(directory); });
}

}  // namespace terrace
