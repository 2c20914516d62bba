#include "checkpoint/files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/values.h"

namespace terrace {

absl::StatusOr<CheckpointFiles> CheckpointFiles::Open(const File& directory,
                                                      const std::string& text,
                                                      const std::string& name,
                                                      size_t most_open) {
  const std::string path = absl::StrCat(directory.path(), "/", name);
  TERRACE_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, path));
  if (!manifest.parameters || !manifest.elsewhere.empty()) {
    return Damaged(path, "is of a part, not the whole");
  }
  TERRACE_ASSIGN_OR_RETURN(File own, File::OpenDirectory(directory));
  CheckpointFiles files(std::move(own), std::move(manifest));
  TERRACE_RETURN_IF_ERROR(files.OpenAll(path, most_open));
  TERRACE_RETURN_IF_ERROR(files.CheckState(directory.path()));
  if (!files.values_.empty()) {
    TERRACE_RETURN_IF_ERROR(
        CheckFiledValues(files.manifest_, files.values_.front()));
  }
  return files;
}

absl::Status CheckpointFiles::OpenAll(const std::string& path,
                                      size_t most_open) {
  size_t count = 0;
  const auto open = [&](const ManifestFile& file,
                        std::vector<TensorFileReader>& to) -> absl::Status {
    if (!IsCheckpointFileName(file.name)) {
      return Damaged(path, absl::StrCat("names '", file.name,
                                        "', which is no file of a checkpoint"));
    }
    TERRACE_ASSIGN_OR_RETURN(
        TensorFileReader reader,
        TensorFileReader::Open(*directory_, file, manifest_.block_bytes,
                               /*stays_open=*/count++ < most_open));
    to.push_back(std::move(reader));
    return absl::OkStatus();
  };
  TERRACE_RETURN_IF_ERROR(open(*manifest_.parameters, parameters_));
  for (const ManifestFile& file : manifest_.state) {
    TERRACE_RETURN_IF_ERROR(open(file, state_));
  }
  if (!manifest_.values_file) return absl::OkStatus();
  return open(*manifest_.values_file, values_);
}

CheckpointFiles::Found CheckpointFiles::FindState(
    const std::string& parameter, const StateArray& array) const {
  const std::string name = absl::StrCat(parameter, array.suffix);
  for (const TensorFileReader& file : state_) {
    const SafetensorsEntry* entry = file.Find(name);
    if (entry != nullptr) return {&file, entry};
  }
  return {};
}

// Whether the files of state are those that an optimizer's state takes.
absl::Status CheckpointFiles::CheckState(const std::string& path) const {
  size_t arrays = 0;
  for (const auto& [name, steps] : manifest_.parameter_steps) {
    const SafetensorsEntry* parameter = parameters().Find(name);
    if (parameter == nullptr || state_.empty()) {
      return Damaged(path, absl::StrCat("has a counter of '", name,
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
            path,
            absl::StrCat("tensor '", name, array.suffix,
                         "' is missing or not fp32 of the shape of '", name,
                         "', ", ShapeText(parameter->dtype, parameter->shape)));
      }
      ++arrays;
    }
  }
  size_t tensors = 0;
  for (const TensorFileReader& file : state_) tensors += file.tensors().size();
  if (arrays == tensors) return absl::OkStatus();
  return Damaged(path,
                 absl::StrCat("has ", tensors, " tensors of state, ", arrays,
                              " of them are one parameter's each"));
}

absl::StatusOr<CheckpointValues> CheckpointFiles::ReadValues() const {
  CheckpointValues values = manifest_.values;
  if (values_.empty()) return values;
  TERRACE_RETURN_IF_ERROR(ReadFiledValues(manifest_, values_.front(), &values));
  values_.front().DropCache();
  return values;
}

std::vector<const TensorFileReader*> CheckpointFiles::All() const {
  std::vector<const TensorFileReader*> all;
  for (const auto* files : {&parameters_, &state_, &values_}) {
    for (const TensorFileReader& file : *files) all.push_back(&file);
  }
  return all;
}

absl::Status CheckpointFiles::Verify() const {
  for (const TensorFileReader* file : All()) {
    TERRACE_RETURN_IF_ERROR(file->Verify());
  }
  return absl::OkStatus();
}

void CheckpointFiles::DropCache() const {
  for (const TensorFileReader* file : All()) file->DropCache();
}

}  // namespace terrace
