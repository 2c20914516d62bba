#include "aio/io_paths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aio/queue/io_queue.h"
#include "aio/queue/piece_table.h"
#include "base/check.h"
#include "base/status_macros.h"

// Of the leak sanitiser, null without it.
extern "C" void __lsan_ignore_object(const void* object) __attribute__((weak));

namespace terrace {

struct IoPaths::Rep {
  std::unique_ptr<IoEngine> engine;
  Clock* clock = nullptr;
  // Last, so gone first: a queue refers to the engine.
  std::vector<std::unique_ptr<IoQueue>> queues;

  IoQueue& queue(int path) const {
    TERRACE_CHECK(path >= 0 && path < static_cast<int>(queues.size()));
    return *queues[path];
  }
};

IoPaths::IoPaths(std::unique_ptr<IoEngine> engine, Clock& clock)
    : rep_(std::make_unique<Rep>()) {
  rep_->engine = std::move(engine);
  rep_->clock = &clock;
}

IoPaths::~IoPaths() = default;

absl::StatusOr<int> IoPaths::AddPath(const std::string& name, int fd,
                                     const IoQueueOptions& options,
                                     const JoinLink& join) {
  const int path = static_cast<int>(rep_->queues.size());
  if (path >= PieceTable::kMaxPaths) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no more than ", PieceTable::kMaxPaths, " disk paths: ", name));
  }
  TERRACE_ASSIGN_OR_RETURN(const int file, rep_->engine->AddFile(fd));
  rep_->queues.push_back(std::make_unique<IoQueue>(
      path, name, file, options, join, *rep_->engine, *rep_->clock));
  return path;
}

void IoPaths::Enqueue(int path, const IoTransfer& transfer) {
  rep_->queue(path).Enqueue(transfer);
}

bool IoPaths::Cancel(int path, uint64_t tag) {
  return rep_->queue(path).Cancel(tag);
}

void IoPaths::Promote(int path, uint64_t tag, IoClass io_class) {
  rep_->queue(path).Promote(tag, io_class);
}

void IoPaths::Poll(std::vector<Completion>* completions) {
  IoResult results[64];
  constexpr int kMost = static_cast<int>(std::size(results));
  // Everything that has landed, then one turn: what is in flight is refilled
  // in one go, and what was promised first goes first.
  for (int n = kMost; n == kMost;) {
    n = rep_->engine->Poll(absl::MakeSpan(results));
    TERRACE_CHECK(n >= 0 && n <= kMost);
    for (int i = 0; i < n; ++i) {
      rep_->queue(PieceTable::PathOf(results[i].tag)).OnResult(results[i]);
    }
  }
  for (const auto& queue : rep_->queues) queue->Turn(completions);
}

int64_t IoPaths::pending() const {
  int64_t pending = 0;
  for (const auto& queue : rep_->queues) pending += queue->pending();
  return pending;
}

absl::Time IoPaths::NextEvent() const {
  absl::Time next = rep_->engine->NextEvent();
  for (const auto& queue : rep_->queues) {
    next = std::min(next, queue->NextEvent());
  }
  return next;
}

void IoPaths::Wait(absl::Time deadline) {
  // Not when there is something to do: a wait would only delay it.
  Sleep(std::min(deadline, NextEvent()));
}

void IoPaths::Sleep(absl::Time deadline) { rep_->engine->Wait(deadline); }

void IoPaths::Wake() { rep_->engine->Wake(); }

void IoPaths::RegisterArena(absl::Span<std::byte> arena) {
  rep_->engine->RegisterArena(arena);
}

bool IoPaths::UnregisterArena(absl::Span<std::byte> part) {
  return rep_->engine->UnregisterArena(part);
}

EngineInfo IoPaths::engine_info() const { return rep_->engine->info(); }

IoPathStats IoPaths::stats(int path) const { return rep_->queue(path).stats(); }

void IoPaths::Abandon() {
  for (const auto& queue : rep_->queues) queue->LeaveLink();
  // The kernel may still write into buffers, and results must find the
  // bookkeeping: all of it stays behind, unowned.
  const Rep* const abandoned = rep_.release();
  if (__lsan_ignore_object != nullptr) __lsan_ignore_object(abandoned);
}

}  // namespace terrace
