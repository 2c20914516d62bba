// A safetensors file of a checkpoint, written and read in blocks of at most
// kCheckpointBlockBytes of one tensor, each with its checksum. Move-only; one
// thread at a time. Offsets and sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/source_file.h"

namespace terrace {

class TensorFileWriter {
 public:
  // Makes the file, with room for all of it. After an error the file may be
  // there; its owner removes it.
  static absl::StatusOr<TensorFileWriter> Create(
      int directory_fd, const std::string& directory, const std::string& name,
      std::vector<SafetensorsEntry> tensors);

  // Block `block` of a tensor: of full size, but for the last. Each block of
  // each tensor once, in any order.
  absl::Status WriteBlock(const std::string& tensor, int64_t block,
                          absl::Span<const std::byte> bytes);
  // Flushes, leaves nothing in the page cache, and says what was written.
  absl::StatusOr<ManifestFile> Finish();

 private:
  explicit TensorFileWriter(File file) : file_(std::move(file)) {}

  File file_;
  ManifestFile manifest_;
  std::map<std::string, int64_t> offsets_;
};

class TensorFileReader {
 public:
  // NotFound: no such file. DataLoss: its size or header is not what was
  // written; names the first tensor that is not there whole.
  // `directory` and `stays_open` as of SourceFile.
  static absl::StatusOr<TensorFileReader> Open(const File& directory,
                                               ManifestFile manifest,
                                               int64_t block_bytes,
                                               bool stays_open = true);

  const std::vector<SafetensorsEntry>& tensors() const {
    return header_.tensors;
  }
  // Null: none of that name.
  const SafetensorsEntry* Find(const std::string& tensor) const;
  int64_t block_bytes() const { return block_bytes_; }
  const std::string& path() const { return file_.path(); }

  // How many blocks the tensor has, and bytes of one.
  int64_t Blocks(const SafetensorsEntry& tensor) const;
  int64_t BlockSize(const SafetensorsEntry& tensor, int64_t block) const;
  // Fills `bytes`, as long as the block. DataLoss: not what was written, in
  // which case `bytes` is anything.
  absl::Status ReadBlock(const SafetensorsEntry& tensor, int64_t block,
                         absl::Span<std::byte> bytes) const;
  // All blocks of all tensors.
  absl::Status Verify() const;
  // What was read need not stay in the page cache: of one tensor, but for
  // pages that it shares, or all.
  void DropCache(const SafetensorsEntry& tensor) const;
  void DropCache() const { file_.DropCache(); }

 private:
  TensorFileReader(SourceFile file, ManifestFile manifest, int64_t block_bytes)
      : file_(std::move(file)),
        manifest_(std::move(manifest)),
        block_bytes_(block_bytes) {}
  absl::Status ReadHeader();
  absl::Status CheckSize() const;
  absl::Status CheckChecksums() const;

  SourceFile file_;
  ManifestFile manifest_;
  int64_t block_bytes_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> places_;  // in the header, by name
};

}  // namespace terrace
