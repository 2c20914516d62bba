// What a daemon's watch tells one process of a job about the loops that serve
// it: a page of a memory file of its own, which the process can read, and which
// nobody can write but the daemon, who has it mapped. In the daemon one thread
// writes it, terrace-loops, twice a second.
//
// Words alone, so that neither side waits for the other or for a lock.
#pragma once

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

// Linux 5.1; absent from older C libraries' headers.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace terrace {

struct LoopPage {
  static constexpr uint64_t kMagic = 0x65676170706f6f6c;  // "looppage"
  static constexpr uint64_t kVersion = 1;
  static constexpr int64_t kBytes = 4096;  // of the file
  // The process can shrink, enlarge, write or unseal it by no means.
  static constexpr int kSeals =
      F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

  // Which word is whose; a disk's thread has kFiles and its number.
  enum Loop : size_t { kSession, kMover, kChecksums, kFiles };
  static constexpr size_t kMostDisks = 64;  // that have a word
  static constexpr size_t kLoops = kFiles + kMostDisks;

  std::atomic<uint64_t> magic = kMagic;
  std::atomic<uint64_t> version = kVersion;
  // Counts turns of the watch: a page that stays as it is says nothing.
  std::atomic<uint64_t> turns = 0;
  // Nanoseconds for which a loop has been asked and has not answered, as of the
  // last turn; 0: it turns.
  std::array<std::atomic<int64_t>, kLoops> silences = {};
};

static_assert(sizeof(LoopPage) <= LoopPage::kBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<int64_t>::is_always_lock_free);

// As the daemon's status has it: "mover", "files 0".
inline std::string LoopTextAt(size_t loop) {
  switch (loop) {
    case LoopPage::kSession:
      return "session";
    case LoopPage::kMover:
      return "mover";
    case LoopPage::kChecksums:
      return "checksums";
    default:
      return absl::StrCat("files ", loop - LoopPage::kFiles);
  }
}

}  // namespace terrace
