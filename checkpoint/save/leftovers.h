// Files in a checkpoint's directory that are none of the checkpoint's, and that
// a list of a save names: what saves left that were killed or failed, and what
// the checkpoint before had. Other files are never touched. Of who holds the
// lock; one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/file.h"

namespace terrace {

class Leftovers {
 public:
  // Of `own`, which the caller lists, and of what the lists name that lie
  // there, `dead_lock` among them if it is given. Beside a checkpoint.json that
  // cannot be read only what of `own` it does not mention. `directory` outlives
  // this.
  static Leftovers Find(const File& directory,
                        absl::Span<const std::string> own,
                        absl::string_view dead_lock = "");

  bool empty() const { return files_.empty() && lists_.empty(); }

  // Only when the checkpoint.json that does not name them is known to be on
  // disk. Whether all are gone; what stays is still listed.
  bool Remove() const;

 private:
  struct List {
    std::string name;
    std::vector<std::string> files;
  };

  explicit Leftovers(const File& directory) : directory_(&directory) {}
  bool Remove(absl::Span<const std::string> files) const;

  const File* directory_;
  std::vector<std::string> files_;
  std::vector<List> lists_;
  bool all_known_ = true;
};

// FailedPrecondition: there is no checkpoint.json, but files of a checkpoint
// that no list names. They may be all that there is of one.
absl::Status CheckForStrays(const File& directory);

}  // namespace terrace
