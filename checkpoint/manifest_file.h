// The checkpoint.json of a directory: its text, and which files it names, which
// nobody removes. Thread-safe, stateless.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/file.h"

namespace terrace {

inline constexpr char kManifestName[] = "checkpoint.json";

// The text of a directory's checkpoint.json. NotFound; DataLoss: more than
// kLongestManifest.
absl::StatusOr<std::string> ReadManifestText(
    const File& directory, const std::string& name = kManifestName);

// What it names, as far as it can be read. A value.
class PresentCheckpoint {
 public:
  // As it is now.
  static PresentCheckpoint Read(const File& directory);

  bool is_there() const { return is_there_; }
  // Whether files() is all that it names: it is whole, or there is none.
  bool is_known() const { return is_known_; }
  const std::set<std::string>& files() const { return files_; }
  // In doubt it does.
  bool Names(const std::string& file) const;

 private:
  bool is_there_ = true;
  bool is_known_ = false;
  std::optional<std::string> damaged_;  // the text, where only that is known
  std::set<std::string> files_;
};

}  // namespace terrace
