// The files that a checkpoint.json names, open and seen to fit together: what
// a reader begins with, and what a save tries before it puts the new
// checkpoint in the old one's place. Move-only; one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/contents.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file.h"

namespace terrace {

class CheckpointFiles {
 public:
  // `text` is that of the file `name` in the directory. Reads it and the
  // headers. Of more files than may stay open the others are opened at each
  // read, and a save that replaces them meanwhile is seen there. NotFound: one
  // of the files is gone. DataLoss, InvalidArgument: as of Checkpoint::Open.
  static absl::StatusOr<CheckpointFiles> Open(const File& directory,
                                              const std::string& text,
                                              const std::string& name,
                                              size_t most_open);

  const Manifest& manifest() const { return manifest_; }
  const TensorFileReader& parameters() const { return parameters_.front(); }
  bool has_state() const { return !state_.empty(); }

  struct Found {
    const TensorFileReader* file = nullptr;
    const SafetensorsEntry* entry = nullptr;  // null: there is none
  };
  Found FindState(const std::string& parameter, const StateArray& array) const;

  // All of them; reads those that lie in a file.
  absl::StatusOr<CheckpointValues> ReadValues() const;
  // Reads everything and compares checksums.
  absl::Status Verify() const;
  // What was read so far need not stay in the page cache.
  void DropCache() const;

 private:
  CheckpointFiles(File directory, Manifest manifest)
      : directory_(std::make_unique<const File>(std::move(directory))),
        manifest_(std::move(manifest)) {}
  absl::Status OpenAll(const std::string& path, size_t most_open);
  absl::Status CheckState(const std::string& path) const;
  std::vector<const TensorFileReader*> All() const;

  std::unique_ptr<const File> directory_;  // outlives those that open there
  Manifest manifest_;
  std::vector<TensorFileReader> parameters_;  // one
  std::vector<TensorFileReader> state_;
  std::vector<TensorFileReader> values_;  // one or none
};

}  // namespace terrace
