// What checkpoint.json says, and its text:
//
//   {"checksum":"<XXH3 of the object>","checkpoint":<object>}
//
// What one process of several wrote is told to the one that commits by a text
// of the same form. Plain values and pure functions. Checksums are 16
// hexadecimal digits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "terrace/checkpoint.h"

namespace terrace {

// Bytes of a tensor under one checksum, and of a transfer to or from a file. A
// load has one block of each array of a parameter in memory, at most three.
inline constexpr int64_t kCheckpointBlockBytes = 4 << 20;

struct ManifestFile {
  std::string name;
  int64_t size_bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_checksum = 0;
  // By tensor, one for each block of it.
  std::map<std::string, std::vector<uint64_t>> checksums;
};

enum class FiledValue { kText, kBytes };

struct Manifest {
  int64_t block_bytes = kCheckpointBlockBytes;
  std::optional<ManifestFile> parameters;  // a checkpoint has them
  // Of the optimizer's state, which may lie in several; none: no optimizer.
  std::vector<ManifestFile> state;
  int64_t step = 0;
  std::map<std::string, int64_t> parameter_steps;
  CheckpointValues values;  // those that lie in the text
  // And by key those in a file of their own; see values.h.
  std::map<std::string, FiledValue> filed_values;
  std::optional<ManifestFile> values_file;  // there if there are some
  // Of a part: parameters whose counter and state another part has.
  std::vector<std::string> elsewhere;

  int64_t size_bytes() const;  // of the files
  std::vector<const ManifestFile*> files() const;
};

// What a reader takes, and so what a save writes. The text grows with 16
// digits for each 4 MiB: 1 GiB of it would be of a quarter of a petabyte.
inline constexpr int64_t kLongestManifest = 1 << 30;

// InvalidArgument: a key or string that is no UTF-8. ResourceExhausted: it
// would be longer than `longest_bytes`; with the sizes.
absl::StatusOr<std::string> ManifestText(
    const Manifest& manifest, int64_t longest_bytes = kLongestManifest);

// `path` is for messages. DataLoss: not what was written; InvalidArgument:
// written by another version, or no checkpoint at all.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       const std::string& path);

}  // namespace terrace
