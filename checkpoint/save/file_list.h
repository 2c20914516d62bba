// A list of the files that a save is going to make or to replace, on disk
// before they are: what tells the next save, after a kill, which files it may
// remove. Text: which process of which host made it, and a line for each file.
//
// `checkpoint.lock` is the one of who has the directory; each part has one
// beside it, since parts are written by several hosts. Move-only; one thread at
// a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/system/host.h"
#include "checkpoint/file.h"

namespace terrace {

class FileList {
 public:
  // Makes the file `name` with these in it, and flushes it and the directory.
  // After an error it is not there, but for one that was there before.
  static absl::StatusOr<FileList> Create(const File& directory,
                                         const std::string& name,
                                         absl::Span<const std::string> files);
  // They are on disk when it returns. FailedPrecondition: the list would be
  // longer than one that Read() takes, and is as it was.
  absl::Status Add(absl::Span<const std::string> files);

  struct Listed {
    std::string pid;
    std::optional<Host> host;  // nothing: it was killed before it wrote that
    std::vector<std::string> files;

    std::string Owner() const;  // "process 12 on node7"
  };
  // What the file `name` lists: less than was to be written where its save was
  // killed meanwhile, and of that nothing was made. NotFound: there is none.
  // FailedPrecondition: it is no such list, nor the beginning of one, but
  // another program's file, a link or no file at all.
  static absl::StatusOr<Listed> Read(const File& directory,
                                     const std::string& name);

 private:
  explicit FileList(File file) : file_(std::move(file)) {}
  absl::Status Append(absl::string_view lines);

  File file_;
  int64_t size_bytes_ = 0;
};

}  // namespace terrace
