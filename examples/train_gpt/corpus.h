// The text to train on: a file, or all files below a folder in the order of
// their paths, seen as one long row of tokens. Only names and sizes are kept;
// a read goes to the files, so a corpus of any size costs no memory.
//
// A token is a byte, or in .bin files a little-endian uint16 (as GPT-2 token
// files are made; a header of 1,024 bytes that opens with 20240520 is skipped).
// Files that begin with a dot and links to folders are left out. One thread at
// a time. Errors name the path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace train_gpt {

class Corpus {
 public:
  // Needs `least_tokens` tokens, and of the model a vocabulary of `vocab`.
  static absl::StatusOr<Corpus> Open(const std::string& path, int64_t vocab,
                                     int64_t least_tokens);

  // The tokens [first, first + tokens.size()), which must lie within size().
  absl::Status Read(int64_t first, absl::Span<int64_t> tokens) const;

  int64_t size() const { return size_; }
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }
  const std::string& path() const { return path_; }

 private:
  struct File {
    std::string path;
    int64_t first_token;
    int64_t token_count;
    int64_t header_bytes;
  };
  Corpus() = default;
  absl::Status Add(const std::string& path, int64_t size_bytes);
  absl::Status ReadFile(const File& file, int64_t first,
                        absl::Span<int64_t> tokens) const;

  std::string path_;
  std::vector<File> files_;
  int64_t size_ = 0;
  int64_t vocab_ = 0;
  int64_t token_bytes_ = 1;
};

// The rows of one micro-batch: `rows` windows of `seq` + 1 tokens (the last is
// only predicted), row after row. Which windows is a pure function of seed,
// step and micro-batch.
absl::Status ReadBatch(const Corpus& corpus, uint64_t seed, int64_t step,
                       int64_t micro_batch, int64_t rows, int64_t seq,
                       std::vector<int64_t>* tokens);

}  // namespace train_gpt
