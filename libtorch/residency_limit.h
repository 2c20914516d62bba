// Keeps a mapping of a file from filling memory while a caller goes through
// it, as torch.save does through tensors that are larger than memory: what was
// touched counts as the process's memory until the kernel takes it back, and a
// container's limit may be there first.
//
// One thread of its own looks 200 times a second at how many file pages this
// process has, which takes microseconds, and when there are 8 MiB more than
// there were it unmaps the mapping's: the bytes stay in the file and its page
// cache, and the next touch maps them again. A reader at 2 GB/s has 8 + 10
// MiB mapped at most, and more where a busy machine lets the thread wait.
// Without one (the system gives none, or in a forked child) nothing is
// unmapped, and all else works.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "base/process.h"

namespace terrace {

class ResidencyLimit {
 public:
  // A shared mapping of a file, which outlives this.
  explicit ResidencyLimit(absl::Span<std::byte> mapping);
  ~ResidencyLimit();
  ResidencyLimit(const ResidencyLimit&) = delete;
  ResidencyLimit& operator=(const ResidencyLimit&) = delete;

 private:
  class Watcher;

  const Process process_;
  std::unique_ptr<Watcher> watcher_;  // null: there was no thread
};

}  // namespace terrace
