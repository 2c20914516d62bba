#include "libtorch/hook/window/byte_window.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/hook/window/group_fetch.h"

namespace terrace {
namespace {

// A window is promised so much of the Runtime's budget; what it has beyond that
// it has as far as others leave room.
constexpr int64_t kPromisedBytes = kBlockBytes;
// Add waits so long for a queue that nothing uses.
constexpr absl::Duration kTrialWait = absl::Milliseconds(100);

// Where every path has refused a write, the paths are tried again.
absl::StatusOr<std::vector<TensorId>> Register(
    Runtime& runtime, absl::Span<const TensorSpec> specs) {
  absl::StatusOr<std::vector<TensorId>> ids = runtime.Register(specs);
  if (!absl::IsUnavailable(ids.status())) return ids;
  // Asking for a queue tries the paths again, whatever becomes of the queue.
  runtime.OpenQueue(/*slot_bytes=*/1, /*slots=*/1, absl::Now() + kTrialWait)
      .IgnoreError();
  return runtime.Register(specs);
}

}  // namespace

int64_t TierBudget(const Runtime& runtime, absl::string_view tier) {
  const Stats stats = runtime.GetStats();
  if (tier.empty()) return stats.host.budget_bytes;
  for (const TierStats& each : stats.tiers) {
    if (each.name == tier) return each.budget_bytes;
  }
  return 0;
}

ByteWindow::ByteWindow(Runtime& runtime, const ByteWindowOptions& options)
    : runtime_(runtime),
      options_(options),
      pins_(runtime, options.tier, options.window_bytes,
            TierBudget(runtime, options.tier), options.beyond_bytes),
      ordinary_(options.available_bytes) {}

absl::Status ByteWindow::Add(absl::Span<WindowTensor* const> tensors) {
  TERRACE_RETURN_IF_ERROR(pins_.queue().Open(kPromisedBytes));
  std::vector<TensorSpec> specs;
  for (const WindowTensor* const tensor : tensors) {
    specs.push_back({.name = tensor->name(),
                     .size_bytes = tensor->size_bytes(),
                     .step_number = tensor->step_number()});
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorId> ids,
                           Register(runtime_, specs));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i]->id_ = ids[i];
    pins_.meter().NoteAdded(*tensors[i]);
  }
  return absl::OkStatus();
}

absl::Status ByteWindow::Fill(WindowTensor& tensor, const std::byte* source,
                              const Asker& asker) {
  TERRACE_CHECK(tensor.word().BeginLoad());
  absl::StatusOr<WindowPins::Brought> brought = pins_.Take(
      {&tensor}, Access::kOverwrite, asker, absl::Now() + options_.patience);
  absl::Status status = brought.status();
  if (status.ok()) {
    Pin& pin = brought->pins.front();
    status = tensor.CopyIn(AddressOf(pin), source);
    if (status.ok()) {
      status = pins_.Install(tensor, std::move(pin));
    } else {
      pins_.GiveBack(tensor, std::move(pin));
    }
  }
  if (!status.ok()) {
    tensor.word().End(Residency::kCold);
    return status;
  }
  tensor.MarkWritten();
  room().NotePeak([this] { return pins_.queue().BytesInUse(); });
  tensor.word().End(Residency::kResident);
  return absl::OkStatus();
}

void ByteWindow::Remove(WindowTensor& tensor) {
  tensor.word().Take();
  RemoveOwned(tensor);
}

void ByteWindow::RemoveOwned(WindowTensor& tensor) {
  pins_.queue().TellUses();  // its own too, while it has a name
  pins_.Remove(tensor);
  tensor.word().End(Residency::kCold);
}

absl::Status ByteWindow::Fetch(const Tensors& tensors, const Asker& asker) {
  const absl::Time begun = absl::Now();
  const absl::Status status =
      GroupFetch(pins_, asker, begun + options_.patience, options_.verify_clean)
          .Bring(tensors);
  if (asker.caller == Caller::kBeside) return status;
  const absl::Duration blocked =
      (absl::Now() - begun) / static_cast<int64_t>(tensors.size());
  for (WindowTensor* const each : tensors) {
    each->NoteBlocked(blocked);
    pins_.meter().NoteBlocked(*each, blocked);
  }
  return status;
}

void ByteWindow::BeginStep() {
  steps_.fetch_add(1, std::memory_order_relaxed);
  pins_.queue().BeginStep();
}

void ByteWindow::FetchAhead(absl::Span<const WindowTensor* const> tensors) {
  std::vector<TensorId> away;
  for (const WindowTensor* const each : tensors) {
    const bool is_away = each->word().state() == Residency::kCold;
    if (is_away && !each->gone()) away.push_back(each->id_);
  }
  if (!away.empty()) runtime_.Prefetch(away);
}

void ByteWindow::Resize(int64_t window_bytes, int64_t most_bytes) {
  room().Resize(window_bytes, most_bytes);
  pins_.queue().HoldAtMost(window_bytes);
}

void ByteWindow::Retry() {
  for (WindowTensor* const each : pins_.TakeFailed()) {
    each->word().End(Residency::kCold);
  }
}

absl::Status ByteWindow::MoveOut(WindowTensor& tensor) {
  const absl::Status room = ordinary_.CheckRoom(tensor.size_bytes());
  if (!room.ok()) return Reworded(room, tensor.Told(room.message()));
  tensor.word().Hold();
  // A tensor that cannot be brought may be tried again.
  absl::Status status = Fetch({&tensor}, {.caller = Caller::kCopy});
  if (!status.ok()) {
    if (tensor.word().Unpin()) pins_.Evict(tensor);
    return status;
  }
  // Take ends the hold without a gap in which another thread could evict.
  tensor.word().Take(/*is_held=*/true);
  status = tensor.MoveOut();
  if (!status.ok()) {
    pins_.Evict(tensor);
    return status;
  }
  RemoveOwned(tensor);
  return absl::OkStatus();
}

void ByteWindow::Refuse(WindowTensor& tensor, const std::string& why) {
  tensor.word().Take();
  if (!tensor.is_here() || tensor.TakeAway()) {
    tensor.Refuse(tensor.Told(why));
  }
  RemoveOwned(tensor);
}

ByteWindowStats ByteWindow::stats() const {
  ByteWindowStats stats = pins_.meter().stats();
  stats.used_bytes = pins_.room().used_bytes();
  stats.peaks = pins_.room().peaks();
  stats.failures += pins_.later().failures();
  stats.first_error.Update(pins_.later().first_error());
  return stats;
}

}  // namespace terrace
