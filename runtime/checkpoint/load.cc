#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"
#include "runtime/checkpoint/contents.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/tensor_file.h"
#include "terrace/checkpoint.h"

namespace terrace {
namespace {

// How often a save may replace the checkpoint while it is being opened.
constexpr int kOpenTries = 100;

class OpenCheckpoint final : public Checkpoint {
 public:
  OpenCheckpoint(std::string directory, Manifest manifest,
                 TensorFileReader parameters,
                 std::vector<TensorFileReader> state);

  // Whether the files are those that an optimizer's state takes.
  absl::Status CheckFiles() const;

  int64_t step() const override { return manifest_.step; }
  bool has_optimizer() const override { return !state_files_.empty(); }
  int64_t size_bytes() const override { return manifest_.size_bytes(); }
  absl::Span<const CheckpointTensor> parameters() const override {
    return tensors_;
  }
  const CheckpointValues& values() const override { return manifest_.values; }

  absl::Status Verify() override;
  absl::Status Load(absl::Span<const CheckpointTensor> parameters,
                    OffloadedOptimizer* optimizer, Time deadline) override;

 private:
  struct Array {
    OffloadedOptimizer::StateKind kind;
    const TensorFileReader* file;
    const SafetensorsEntry* entry;  // null: there is none
  };
  // What the optimizer's state is to become.
  struct State {
    OffloadedOptimizer& optimizer;
    std::vector<int64_t> steps;  // by its parameters
    absl::Time end;              // by SystemClock()
  };

  Array FindState(const std::string& parameter, const StateArray& array) const;
  absl::Status CheckParameters(
      absl::Span<const CheckpointTensor> parameters) const;
  absl::StatusOr<State> CheckOptimizer(
      absl::Span<const CheckpointTensor> parameters,
      OffloadedOptimizer& optimizer, Time deadline) const;
  absl::Status LoadOptimizer(absl::Span<const CheckpointTensor> parameters,
                             const State& state);
  absl::Status LoadState(const CheckpointTensor& tensor, const State& state);
  absl::Status WriteBlocks(int parameter, absl::Span<const Array> arrays,
                           int64_t from, int64_t count, const State& state);
  absl::Status LoadParameters(absl::Span<const CheckpointTensor> parameters);

  const std::string directory_;
  const Manifest manifest_;
  const TensorFileReader parameter_file_;
  const std::vector<TensorFileReader> state_files_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<float> buffer_;
};

OpenCheckpoint::OpenCheckpoint(std::string directory, Manifest manifest,
                               TensorFileReader parameters,
                               std::vector<TensorFileReader> state)
    : directory_(std::move(directory)),
      manifest_(std::move(manifest)),
      parameter_file_(std::move(parameters)),
      state_files_(std::move(state)) {
  for (const SafetensorsEntry& entry : parameter_file_.tensors()) {
    tensors_.push_back(
        {.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
}

OpenCheckpoint::Array OpenCheckpoint::FindState(const std::string& parameter,
                                                const StateArray& array) const {
  const std::string name = absl::StrCat(parameter, array.suffix);
  for (const TensorFileReader& file : state_files_) {
    const SafetensorsEntry* entry = file.Find(name);
    if (entry != nullptr) return {array.kind, &file, entry};
  }
  return {array.kind, nullptr, nullptr};
}

absl::Status OpenCheckpoint::CheckFiles() const {
  size_t arrays = 0;
  for (const auto& [name, steps] : manifest_.parameter_steps) {
    const SafetensorsEntry* parameter = parameter_file_.Find(name);
    if (parameter == nullptr || state_files_.empty()) {
      return Damaged(directory_, absl::StrCat("has a counter of '", name,
                                              "' but no such parameter"));
    }
    for (const StateArray& array : kStateArrays) {
      const SafetensorsEntry* found = FindState(name, array).entry;
      const bool master = array.kind == OffloadedOptimizer::StateKind::kMaster;
      if (found == nullptr && (steps == 0 || master)) continue;
      if (found == nullptr || found->dtype != DType::kFloat32 ||
          found->shape != parameter->shape ||
          (master && parameter->dtype == DType::kFloat32)) {
        return Damaged(
            directory_,
            absl::StrCat("tensor '", name, array.suffix,
                         "' is missing or not fp32 of the shape of '", name,
                         "', ", ShapeText(parameter->dtype, parameter->shape)));
      }
      ++arrays;
    }
  }
  size_t tensors = 0;
  for (const TensorFileReader& file : state_files_) {
    tensors += file.tensors().size();
  }
  if (arrays == tensors) return absl::OkStatus();
  return Damaged(directory_,
                 absl::StrCat("has ", tensors, " tensors of state, ", arrays,
                              " of them are one parameter's each"));
}

absl::Status OpenCheckpoint::Verify() {
  TERRACE_RETURN_IF_ERROR(parameter_file_.Verify());
  for (const TensorFileReader& file : state_files_) {
    TERRACE_RETURN_IF_ERROR(file.Verify());
  }
  return absl::OkStatus();
}

absl::Status OpenCheckpoint::CheckParameters(
    absl::Span<const CheckpointTensor> parameters) const {
  const auto here = [this](const SafetensorsEntry& entry) {
    return absl::StrCat("parameter '", entry.name, "' of ", directory_, ", ",
                        ShapeText(entry.dtype, entry.shape));
  };
  for (const CheckpointTensor& tensor : parameters) {
    const SafetensorsEntry* entry = parameter_file_.Find(tensor.name);
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
  if (parameters.size() == parameter_file_.tensors().size()) {
    return absl::OkStatus();
  }
  // Names are unique on both sides, so there is one that is only here.
  for (const SafetensorsEntry& entry : parameter_file_.tensors()) {
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

absl::StatusOr<OpenCheckpoint::State> OpenCheckpoint::CheckOptimizer(
    absl::Span<const CheckpointTensor> parameters,
    OffloadedOptimizer& optimizer, Time deadline) const {
  if (state_files_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_, ": holds no optimizer's state"));
  }
  State state{optimizer, std::vector<int64_t>(optimizer.parameters().size()),
              SystemClock().FromWall(deadline)};
  for (const CheckpointTensor& tensor : parameters) {
    const auto found = manifest_.parameter_steps.find(tensor.name);
    const bool saved = found != manifest_.parameter_steps.end();
    if (saved != (tensor.optimizer_parameter != -1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", tensor.name, "' is ",
                       saved ? "not the optimizer's, but was in "
                             : "the optimizer's, but "
                               "was not in ",
                       directory_));
    }
    if (saved && tensor.optimizer_parameter != kOfAnotherRank) {
      state.steps[static_cast<size_t>(tensor.optimizer_parameter)] =
          found->second;
    }
  }
  return state;
}

absl::Status OpenCheckpoint::LoadState(const CheckpointTensor& tensor,
                                       const State& state) {
  std::vector<Array> arrays;
  for (const StateArray& array : kStateArrays) {
    const Array found = FindState(tensor.name, array);
    if (found.entry != nullptr) arrays.push_back(found);
  }
  if (arrays.empty()) return absl::OkStatus();
  const int64_t block_elements =
      manifest_.block_bytes / static_cast<int64_t>(sizeof(float));
  for (int64_t from = 0; from < tensor.count(); from += block_elements) {
    const int64_t count = std::min(block_elements, tensor.count() - from);
    buffer_.resize(arrays.size() * static_cast<size_t>(count));
    for (size_t i = 0; i < arrays.size(); ++i) {
      float* block = buffer_.data() + i * static_cast<size_t>(count);
      TERRACE_RETURN_IF_ERROR(arrays[i].file->ReadBlock(
          *arrays[i].entry, from / block_elements,
          {reinterpret_cast<std::byte*>(block),
           static_cast<size_t>(count) * sizeof(float)}));
    }
    TERRACE_RETURN_IF_ERROR(
        WriteBlocks(tensor.optimizer_parameter, arrays, from, count, state));
  }
  return absl::OkStatus();
}

// One block of each array, which lie behind each other in the buffer.
absl::Status OpenCheckpoint::WriteBlocks(int parameter,
                                         absl::Span<const Array> arrays,
                                         int64_t from, int64_t count,
                                         const State& state) {
  for (int64_t piece = 0; piece < count; piece += kPieceElements) {
    const int64_t elements = std::min(kPieceElements, count - piece);
    const float* values = buffer_.data() + piece;
    for (const Array& array : arrays) {
      TERRACE_RETURN_IF_ERROR(
          state.optimizer.WriteState(parameter, array.kind, from + piece,
                                     {values, static_cast<size_t>(elements)},
                                     SystemClock().ToWall(state.end)));
      values += count;
    }
  }
  return absl::OkStatus();
}

absl::Status OpenCheckpoint::LoadOptimizer(
    absl::Span<const CheckpointTensor> parameters, const State& state) {
  TERRACE_RETURN_IF_ERROR(
      state.optimizer.Reset(SystemClock().ToWall(state.end)));
  // Once: a vector that grows has its bytes twice.
  buffer_.reserve(static_cast<size_t>(manifest_.block_bytes) / sizeof(float) *
                  std::size(kStateArrays));
  for (const CheckpointTensor& tensor : parameters) {
    if (tensor.optimizer_parameter < 0) continue;
    TERRACE_RETURN_IF_ERROR(LoadState(tensor, state));
  }
  return state.optimizer.SetSteps(manifest_.step, state.steps);
}

absl::Status OpenCheckpoint::LoadParameters(
    absl::Span<const CheckpointTensor> parameters) {
  std::vector<std::byte> copy;
  for (const CheckpointTensor& tensor : parameters) {
    const SafetensorsEntry& entry = *parameter_file_.Find(tensor.name);
    for (int64_t i = 0; i < parameter_file_.Blocks(entry); ++i) {
      const auto bytes =
          static_cast<size_t>(parameter_file_.BlockSize(entry, i));
      const int64_t from = i * manifest_.block_bytes;
      absl::Span<std::byte> block;
      if (tensor.elements != nullptr) {
        copy.resize(bytes);
        block = absl::MakeSpan(copy);
      } else {
        block = {static_cast<std::byte*>(tensor.data) + from, bytes};
      }
      const absl::Status status = parameter_file_.ReadBlock(entry, i, block);
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

absl::Status OpenCheckpoint::Load(absl::Span<const CheckpointTensor> parameters,
                                  OffloadedOptimizer* optimizer,
                                  Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckTensors(parameters, optimizer));
  TERRACE_RETURN_IF_ERROR(CheckParameters(parameters));
  std::optional<State> state;
  if (optimizer != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(State checked,
                             CheckOptimizer(parameters, *optimizer, deadline));
    state.emplace(std::move(checked));
  }
  // The parameters are changed last, when nothing can fail any more but a
  // file that changes meanwhile; the state can be forgotten, they cannot.
  absl::Status status = parameter_file_.Verify();
  if (status.ok() && state) status = LoadOptimizer(parameters, *state);
  if (status.ok()) status = LoadParameters(parameters);
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
  TERRACE_ASSIGN_OR_RETURN(
      Manifest manifest,
      ParseManifest(text, absl::StrCat(directory.path(), "/", kManifestName)));
  const auto open = [&](const ManifestFile& file) {
    if (!IsCheckpointFileName(file.name)) {
      return absl::StatusOr<TensorFileReader>(
          Damaged(absl::StrCat(directory.path(), "/", kManifestName),
                  absl::StrCat("names '", file.name,
                               "', which is no file of a checkpoint")));
    }
    return TensorFileReader::Open(directory.fd(), directory.path(), file,
                                  manifest.block_bytes);
  };
  if (!manifest.parameters || !manifest.elsewhere.empty()) {
    return Damaged(absl::StrCat(directory.path(), "/", kManifestName),
                   "is of a part, not the whole");
  }
  TERRACE_ASSIGN_OR_RETURN(TensorFileReader parameters,
                           open(*manifest.parameters));
  std::vector<TensorFileReader> state;
  for (const ManifestFile& file : manifest.state) {
    TERRACE_ASSIGN_OR_RETURN(TensorFileReader reader, open(file));
    state.push_back(std::move(reader));
  }
  auto checkpoint =
      std::make_unique<OpenCheckpoint>(directory.path(), std::move(manifest),
                                       std::move(parameters), std::move(state));
  TERRACE_RETURN_IF_ERROR(checkpoint->CheckFiles());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
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

}  // namespace terrace
