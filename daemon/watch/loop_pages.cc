#include "daemon/watch/loop_pages.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr char kChecksums[] = "checksums";

absl::Status CannotBe(int error) {
  const std::string why =
      absl::StrCat("no page to tell of stopped loops: ", std::strerror(error));
  return error == EINVAL ? absl::UnimplementedError(why)
                         : absl::ResourceExhaustedError(why);
}

// Sealed once it is mapped here, so that the mapping stays the one that writes.
absl::StatusOr<LoopPage*> MapPage(const OwnDescriptor& file) {
  const int fd = file.get();
  if (!file.ok() || ftruncate(fd, LoopPage::kBytes) != 0 ||
      fchmod(fd, S_IRUSR) != 0) {
    return CannotBe(errno);
  }
  void* const mapped = mmap(nullptr, LoopPage::kBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return CannotBe(errno);
  if (fcntl(fd, F_ADD_SEALS, LoopPage::kSeals) == 0) {
    return new (mapped) LoopPage;
  }
  const int error = errno;
  munmap(mapped, LoopPage::kBytes);
  return CannotBe(error);
}

OwnDescriptor MakeFile() {
  const ForkPause pause;
  return OwnDescriptor::Of(
      memfd_create("terrace-loops", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// Of which word that loop's silence is; nothing: it has none.
std::optional<size_t> WordOf(const LoopName& name) {
  const auto is = [&](const char* kind) {
    return std::strcmp(name.kind, kind) == 0;
  };
  if (is("session")) return LoopPage::kSession;
  if (is("mover")) return LoopPage::kMover;
  if (is(kChecksums)) return LoopPage::kChecksums;
  if (!is("files") || name.number < 0) return std::nullopt;
  const size_t word = LoopPage::kFiles + static_cast<size_t>(name.number);
  if (word < LoopPage::kLoops) return word;
  return std::nullopt;
}

}  // namespace

LoopPages::~LoopPages() {
  Slot* slot = first_.load();
  while (slot != nullptr) {
    Unmap(*slot);
    delete std::exchange(slot, slot->next);
  }
}

void LoopPages::Unmap(Slot& slot) {
  LoopPage* const page = std::exchange(slot.page, nullptr);
  if (page != nullptr) munmap(page, LoopPage::kBytes);
}

absl::StatusOr<OwnLoopPage> LoopPages::Add(int64_t session) {
  OwnDescriptor file = MakeFile();
  TERRACE_ASSIGN_OR_RETURN(LoopPage* const page, MapPage(file));
  Slot* const slot = TakeSlot();
  slot->session = session;
  slot->page = page;
  slot->state.store(kLive, std::memory_order_release);
  return OwnLoopPage(shared_from_this(), slot, std::move(file));
}

LoopPages::Slot* LoopPages::TakeSlot() {
  Slot* taken = nullptr;
  for (Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr;
       slot = slot->next) {
    uint32_t over = kOver;
    if (slot->state.compare_exchange_strong(over, kTaken)) {
      Unmap(*slot);
      slot->state.store(kFree, std::memory_order_release);
    }
    uint32_t free = kFree;
    if (taken == nullptr && slot->state.compare_exchange_strong(free, kTaken)) {
      taken = slot;
    }
  }
  if (taken != nullptr) return taken;
  auto* const made = new Slot;
  made->state.store(kTaken, std::memory_order_relaxed);
  made->next = first_.load(std::memory_order_relaxed);
  while (!first_.compare_exchange_weak(
      made->next, made, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return made;
}

void LoopPages::Leave(Slot& slot) {
  while (true) {
    uint32_t live = kLive;
    if (slot.state.compare_exchange_strong(live, kTaken)) {
      Unmap(slot);
      slot.state.store(kFree, std::memory_order_release);
      return;
    }
    uint32_t writing = kWriting;
    if (slot.state.compare_exchange_strong(writing, kLeft)) return;
  }
}

void LoopPages::Write(const LoopTable& table, absl::Time now) {
  Stopped stopped;
  if (table.CountStopped(now) > 0) stopped = StoppedOf(table, now);
  for (Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr;
       slot = slot->next) {
    uint32_t live = kLive;
    if (!slot->state.compare_exchange_strong(live, kWriting)) continue;
    WriteOne(*slot, stopped);
    uint32_t writing = kWriting;
    if (!slot->state.compare_exchange_strong(writing, kLive)) {
      slot->state.store(kOver, std::memory_order_release);
    }
  }
}

// Of the threads for checksums, the one that works for the session is its own,
// and so are all where none is left that turns.
LoopPages::Stopped LoopPages::StoppedOf(const LoopTable& table,
                                        absl::Time now) {
  Stopped stopped;
  absl::Duration pool = absl::InfiniteDuration();
  table.ForEach(now, [&](const LoopName& name, absl::Duration silence) {
    const std::optional<size_t> word = WordOf(name);
    if (!word.has_value()) return;
    const bool turns = silence < LoopTable::kMostSilence;
    if (*word == LoopPage::kChecksums) {
      pool = std::min(pool, turns ? absl::ZeroDuration() : silence);
    }
    if (turns || stopped.count == kMostStopped) return;
    stopped.loops[stopped.count++] = {name.session, *word,
                                      absl::ToInt64Nanoseconds(silence)};
  });
  if (pool < absl::InfiniteDuration()) {
    stopped.all_checksums = absl::ToInt64Nanoseconds(pool);
  }
  return stopped;
}

void LoopPages::WriteOne(const Slot& slot, const Stopped& stopped) {
  std::array<int64_t, LoopPage::kLoops> silences = {};
  silences[LoopPage::kChecksums] = stopped.all_checksums;
  for (size_t i = 0; i < stopped.count; ++i) {
    const StoppedLoop& each = stopped.loops[i];
    if (each.session != slot.session) continue;
    silences[each.word] = std::max(silences[each.word], each.silence);
  }
  for (size_t i = 0; i < silences.size(); ++i) {
    slot.page->silences[i].store(silences[i], std::memory_order_relaxed);
  }
  slot.page->turns.fetch_add(1, std::memory_order_release);
}

void OwnLoopPage::End() {
  if (slot_ != nullptr) LoopPages::Leave(*std::exchange(slot_, nullptr));
}

}  // namespace terrace
