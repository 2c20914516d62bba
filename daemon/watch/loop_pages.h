// The pages by which processes of jobs learn which of the loops that serve them
// have stopped (daemon/watch/loop_page.h). A session makes one for its process;
// the watch alone writes them. Neither waits for the other: a page that is
// written while its session ends is unmapped by whoever makes the next one.
//
//   auto page = pages->Add(session);    // a session: as long as it lives
//   Send(page->TakeFile());
//   pages->Write(*table, now);          // the watch, in each turn
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/watch/loop_page.h"
#include "daemon/watch/loop_table.h"

namespace terrace {

// A page is written while this lives. Move-only.
class OwnLoopPage;

class LoopPages : public std::enable_shared_from_this<LoopPages> {
 public:
  LoopPages() = default;
  // Nobody writes any more.
  ~LoopPages();
  LoopPages(const LoopPages&) = delete;
  LoopPages& operator=(const LoopPages&) = delete;

  // For whom LoopName::session has that number. ResourceExhausted: there is no
  // descriptor or memory; Unimplemented: the kernel cannot seal it (5.1).
  absl::StatusOr<OwnLoopPage> Add(int64_t session);
  // All that there are. One thread, which takes no lock here and allocates
  // nothing.
  void Write(const LoopTable& table, absl::Time now);

 private:
  friend class OwnLoopPage;
  enum State : uint32_t {
    kFree,
    kTaken,    // by who makes, or unmaps, its page
    kLive,     // the session's
    kWriting,  // by the watch
    kLeft,     // while it was written: the watch has it
    kOver,     // its page is to be unmapped
  };

  // Never freed before the table, and used again.
  struct Slot {
    std::atomic<uint32_t> state = kFree;
    int64_t session = 0;       // of who has taken or writes it
    LoopPage* page = nullptr;  // likewise
    Slot* next = nullptr;      // constant once it is in the list
  };

  Slot* TakeSlot();
  // It is taken.
  static void Unmap(Slot& slot);
  static void Leave(Slot& slot);
  // What has stopped in this turn; of more than these nobody is told.
  static constexpr size_t kMostStopped = 256;
  struct StoppedLoop {
    int64_t session = 0;
    size_t word = 0;
    int64_t silence = 0;  // in nanoseconds
  };
  struct Stopped {
    std::array<StoppedLoop, kMostStopped> loops;
    size_t count = 0;
    int64_t all_checksums = 0;  // as long as all their threads are silent
  };
  static Stopped StoppedOf(const LoopTable& table, absl::Time now);
  static void WriteOne(const Slot& slot, const Stopped& stopped);

  std::atomic<Slot*> first_ = nullptr;
};

class OwnLoopPage {
 public:
  OwnLoopPage() = default;
  ~OwnLoopPage() { End(); }
  OwnLoopPage(OwnLoopPage&& other) noexcept
      : pages_(std::move(other.pages_)),
        slot_(std::exchange(other.slot_, nullptr)),
        file_(std::move(other.file_)) {}
  OwnLoopPage& operator=(OwnLoopPage&& other) noexcept {
    End();
    pages_ = std::move(other.pages_);
    slot_ = std::exchange(other.slot_, nullptr);
    file_ = std::move(other.file_);
    return *this;
  }

  // What the process is given; once.
  OwnDescriptor TakeFile() { return std::move(file_); }

 private:
  friend class LoopPages;
  OwnLoopPage(std::shared_ptr<LoopPages> pages, LoopPages::Slot* slot,
              OwnDescriptor file)
      : pages_(std::move(pages)), slot_(slot), file_(std::move(file)) {}
  void End();

  std::shared_ptr<LoopPages> pages_;
  LoopPages::Slot* slot_ = nullptr;
  OwnDescriptor file_;
};

}  // namespace terrace
