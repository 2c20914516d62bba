// The tensors of safetensors files: of one file, or of a folder as libraries of
// models write it, which has an index of several files, or one, or as a save of
// a checkpoint does. They are read tensor by tensor, and nothing is mapped.
//
// Owns the files; of more than a process has descriptors for, the others are
// open only while they are read. Move-only. Reads are thread-safe. Offsets and
// sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/file.h"
#include "checkpoint/source_file.h"
#include "terrace/stored_dtype.h"

namespace terrace {

class WeightFiles {
 public:
  struct Tensor {
    StoredDType dtype = StoredDType::kFloat32;
    std::vector<int64_t> shape;
    int64_t size_bytes = 0;
    size_t file = 0;     // of those that are open
    int64_t offset = 0;  // there
  };
  using Tensors = std::map<std::string, Tensor>;
  // The name of a file beside the index, by tensor.
  using Index = std::map<std::string, std::string>;

  // Reads headers only. Of a folder the first of these that is there:
  // model.safetensors.index.json, the only other index, model.safetensors,
  // checkpoint.json, whose parameters are read without their checksums.
  // NotFound: no such path; a folder with none of them; a file that an index
  // names. InvalidArgument: what is no safetensors file or no index; two
  // tensors in one place; a dtype that has no StoredDType; a tensor that its
  // file has not, by the index; a file outside of the index's folder; a name
  // that a header or an index has twice. DataLoss: a file that ends before its
  // header or its last tensor does; a checkpoint.json that was altered. The
  // status has path and offset (base/io_fault.h).
  static absl::StatusOr<WeightFiles> Open(const std::string& path);

  // An index of files of any format. InvalidArgument: it is none, or a file
  // outside of its folder.
  static absl::StatusOr<Index> ReadIndex(const std::string& path);

  const Tensors& tensors() const { return tensors_; }
  const std::string& PathOf(const Tensor& tensor) const {
    return files_[tensor.file].path();
  }

  // Fills `bytes`, of the tensor's from `offset` on, which must be within it.
  // DataLoss: the file ends before; a byte of a kBool tensor that is neither 0
  // nor 1, which is named by its offset. Else what the system says.
  absl::Status Read(const Tensor& tensor, int64_t offset,
                    absl::Span<std::byte> bytes) const;

 private:
  WeightFiles() = default;
  static absl::StatusOr<WeightFiles> OpenPath(const std::string& path);
  absl::StatusOr<Tensors> Add(SourceFile file);
  absl::Status OpenFolder(const std::string& folder);
  absl::Status OpenIndex(const std::string& folder, const std::string& name);
  absl::Status OpenCheckpoint(const std::string& folder);
  absl::Status OpenOnly(SourceFile file);

  std::unique_ptr<const File> folder_;  // of an index
  std::vector<SourceFile> files_;
  Tensors tensors_;
};

}  // namespace terrace
