#include "runtime/memory/memory_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "runtime/messages/request_checks.h"

namespace terrace {
namespace {

constexpr size_t kNamedPins = 8;

}  // namespace

absl::Status MemoryStore::Closed() const {
  return absl::CancelledError(IsOwnProcess()
                                  ? "the runtime was closed"
                                  : "the runtime is the parent process's");
}

absl::Status MemoryStore::Reserve(int64_t size_bytes, int preferred_node) {
  HostArenaOptions options;
  options.size_bytes = size_bytes;
  options.numa_node = node_;
  options.preferred_node = preferred_node;
  options.inspect = false;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena,
                           HostArena::Create(options));
  const auto size = static_cast<int64_t>(arena->bytes().size());
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  stats_.host.reserved_bytes += size;
  stats_.host.numa_node_asked = arena->asked_node();
  pieces_.push_back(
      std::make_unique<Piece>(Piece{std::move(arena), ExtentAllocator(size)}));
  return absl::OkStatus();
}

void MemoryStore::ReleaseUnused() {
  MutexLock lock(mutex_);
  std::erase_if(pieces_, [this](const std::unique_ptr<Piece>& piece)
                             ABSL_NO_THREAD_SAFETY_ANALYSIS {
                               if (piece->space.used_bytes() > 0) return false;
                               stats_.host.reserved_bytes -=
                                   piece->space.capacity_bytes();
                               return true;
                             });
}

absl::StatusOr<TensorId> MemoryStore::Register(const TensorSpec& spec) {
  TERRACE_RETURN_IF_ERROR(CheckSpec(spec));
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  if (names_.contains(spec.name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("tensor '", spec.name, "' is registered already"));
  }
  int64_t largest = 0;
  for (const auto& piece : pieces_) {
    const int64_t free_bytes = piece->space.largest_free_bytes();
    largest = std::max(largest, free_bytes);
    if (free_bytes < spec.size_bytes) continue;
    Tensor tensor;
    tensor.spec = spec;
    tensor.piece = piece.get();
    TERRACE_ASSIGN_OR_RETURN(tensor.place,
                             piece->space.Allocate(spec.size_bytes));
    stats_.host.used_bytes += tensor.place.size_bytes;
    stats_.host.peak_bytes =
        std::max(stats_.host.peak_bytes, stats_.host.used_bytes);
    names_.insert(spec.name);
    tensors_.emplace(next_tensor_, std::move(tensor));
    return TensorId{next_tensor_++};
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("tensor '", spec.name, "' of ", spec.size_bytes,
                   " bytes: of ", stats_.host.reserved_bytes,
                   " bytes of memory the largest free part has ", largest));
}

absl::Status MemoryStore::Unregister(TensorId tensor) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  const auto found = tensors_.find(tensor.value);
  if (found == tensors_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no tensor ", tensor.value));
  }
  const Tensor& gone = found->second;
  if (gone.pins > 0 || gone.wanted > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", gone.spec.name, "' is ",
                     gone.pins > 0 ? "pinned" : "wanted by a queue"));
  }
  stats_.host.used_bytes -= gone.place.size_bytes;
  gone.piece->space.Free(gone.place);
  names_.erase(gone.spec.name);
  tensors_.erase(found);
  return absl::OkStatus();
}

Stats MemoryStore::GetStats() const {
  MutexLock lock(mutex_);
  Stats stats = stats_;
  stats.engine = "memory";
  stats.engine_reason = "everything stays in memory";
  stats.host.budget_bytes = INT64_MAX / 2;
  stats.resident_bytes = stats.host.used_bytes;
  TierSpec memory;
  if (node_ >= 0) memory.place = absl::StrCat("node", node_);
  stats.tiers.push_back({.name = TierName(memory),
                         .kind = TierKind::kDram,
                         .used_bytes = stats.host.used_bytes,
                         .peak_bytes = stats.host.peak_bytes,
                         .hits = stats.hits});
  return stats;
}

absl::Status MemoryStore::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  NoteChange();
  if (!lines_.empty() || !pins_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("still held: ", Holders()));
  }
  tensors_.clear();
  pieces_.clear();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemoryStore::OpenLine(int64_t slot_bytes, int slots) {
  if (slot_bytes <= 0 || slots <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a window of ", slots, " slots of ", slot_bytes, " bytes"));
  }
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  lines_.emplace(next_line_, Line{.slot_bytes = slot_bytes, .slots = slots});
  return next_line_++;
}

void MemoryStore::CloseLine(int64_t id) {
  MutexLock lock(mutex_);
  Line& line = lines_.at(id);
  while (!line.groups.empty()) TakeHead(line);
  lines_.erase(id);
}

absl::Status MemoryStore::Push(int64_t id, absl::Span<const Want> wants,
                               uint64_t tag, absl::Time deadline) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  Line& line = lines_.at(id);
  TERRACE_RETURN_IF_ERROR(CheckWants(
      wants, line.slots, line.slot_bytes,
      [this](TensorId tensor) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const auto found = tensors_.find(tensor.value);
        return found == tensors_.end() ? -1 : found->second.spec.size_bytes;
      }));
  for (const Want& want : wants) ++tensors_.at(want.tensor.value).wanted;
  line.groups.push_back({{wants.begin(), wants.end()}, tag, deadline});
  return absl::OkStatus();
}

absl::StatusOr<Ready> MemoryStore::Next(int64_t id, absl::Time deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (closed_) return Closed();
    Line& line = lines_.at(id);
    if (line.groups.empty()) {
      return absl::FailedPreconditionError("nothing is pushed");
    }
    if (std::optional<Ready> ready = TryAdmit(id, line)) {
      return *std::move(ready);
    }
    const Group& head = line.groups.front();
    if (!IsBlockedByOthers(id, head)) {
      return absl::FailedPreconditionError(
          "the head of the queue is blocked by the queue's own pins");
    }
    if (std::exchange(line.woken, false)) {
      return absl::AbortedError("the wait was ended by a Wake");
    }
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError("nothing became ready in time");
    }
    Recall(head);
    const auto queue = lines_.find(line.queue);
    if (queue != lines_.end()) ++queue->second.waiting;
    const uint64_t seen = changes_;
    clock_.Await(
        mutex_, changed_,
        [this, seen]()
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return changes_ != seen; },
        std::min(deadline, head.deadline));
    if (queue != lines_.end()) --queue->second.waiting;
  }
}

void MemoryStore::Wake(int64_t line) {
  MutexLock lock(mutex_);
  lines_.at(line).woken = true;
  ++changes_;
  changed_.SignalAll();
}

// None: its head waits for pins.
std::optional<Ready> MemoryStore::TryAdmit(int64_t id, Line& line) {
  const Group& head = line.groups.front();
  Ready ready;
  ready.tag = head.tag;
  absl::Status refusal = RefusalOf(head);
  if (refusal.ok() &&
      !std::all_of(head.wants.begin(), head.wants.end(),
                   [this](const Want& want) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     return IsFree(want);
                   })) {
    if (clock_.Now() < head.deadline) return std::nullopt;
    refusal = absl::ResourceExhaustedError(absl::StrCat(
        "group ", head.tag, " was not admitted in time; held: ", Holders()));
  }
  const Group group = TakeHead(line);
  if (!refusal.ok()) {
    Line& steps = line.queue < 0 ? line : lines_.at(line.queue);
    if (absl::IsDataLoss(refusal)) steps.first_error.Update(refusal);
    ready.pins = std::move(refusal);
    return ready;
  }
  std::vector<Pin> pins;
  pins.reserve(group.wants.size());
  for (const Want& want : group.wants) pins.push_back(Take(id, want));
  stats_.hits += static_cast<int64_t>(pins.size());
  ready.pins = std::move(pins);
  return ready;
}

MemoryStore::Group MemoryStore::TakeHead(Line& line) {
  Group group = std::move(line.groups.front());
  line.groups.pop_front();
  for (const Want& want : group.wants) --tensors_.at(want.tensor.value).wanted;
  return group;
}

absl::Status MemoryStore::RefusalOf(const Group& group) const {
  for (const Want& want : group.wants) {
    const Tensor& tensor = tensors_.at(want.tensor.value);
    TERRACE_RETURN_IF_ERROR(tensor.loss);
    // By a pin that is still held, it may be.
    if (tensor.written || tensor.write_pinned ||
        want.access == Access::kOverwrite) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor.spec.name, "' was never written"));
  }
  return absl::OkStatus();
}

bool MemoryStore::IsFree(const Want& want) const {
  const Tensor& tensor = tensors_.at(want.tensor.value);
  return want.access == Access::kRead ? !tensor.write_pinned : tensor.pins == 0;
}

bool MemoryStore::IsBlockedByOthers(int64_t id, const Group& group) const {
  for (const auto& [token, pin] : pins_) {
    if (pin.line == id) continue;
    for (const Want& want : group.wants) {
      if (want.tensor.value == pin.tensor && !IsFree(want)) return true;
    }
  }
  return false;
}

Pin MemoryStore::Take(int64_t id, const Want& want) {
  Tensor& tensor = tensors_.at(want.tensor.value);
  ++tensor.pins;
  tensor.write_pinned = want.access != Access::kRead;
  const uint64_t token = next_token_++;
  pins_[token] = {want.tensor.value, id, want.access, lines_.at(id).queue};
  return Pin(shared_from_this(), token, want.tensor,
             tensor.piece->arena->bytes().subspan(
                 static_cast<size_t>(tensor.place.offset),
                 static_cast<size_t>(tensor.spec.size_bytes)));
}

void MemoryStore::EndPin(uint64_t token, PinEnd end) {
  if (!IsOwnProcess()) return;
  MutexLock lock(mutex_);
  const auto found = pins_.find(token);
  TERRACE_CHECK(found != pins_.end());
  const PinRecord pin = found->second;
  pins_.erase(found);
  const auto queue = lines_.find(pin.queue);
  if (queue != lines_.end()) std::erase(queue->second.recalls, token);
  Tensor& tensor = tensors_.at(pin.tensor);
  --tensor.pins;
  NoteChange();
  if (pin.access == Access::kRead) return;
  tensor.write_pinned = false;
  if (end == PinEnd::kPublish) tensor.written = true;
  if (end != PinEnd::kDiscard || !tensor.written) return;
  tensor.loss = absl::DataLossError(
      absl::StrCat("tensor '", tensor.spec.name,
                   "' was discarded and no lower copy is current"));
  // Of the step of the pin's queue; one that is gone has no step.
  const auto line = lines_.find(pin.queue < 0 ? pin.line : pin.queue);
  if (line != lines_.end()) line->second.first_error.Update(tensor.loss);
}

absl::Status MemoryStore::BeginStep(int64_t id, int64_t step) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  Line& line = lines_.at(id);
  TERRACE_RETURN_IF_ERROR(CheckStepBegins(line.step));
  line.step = step;
  line.first_error = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status MemoryStore::EndStep(int64_t id, std::optional<int64_t> step) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  Line& line = lines_.at(id);
  TERRACE_RETURN_IF_ERROR(CheckStepEnds(line.step, step));
  line.step.reset();
  return std::exchange(line.first_error, absl::OkStatus());
}

std::string MemoryStore::Holders() const {
  std::vector<std::string> names;
  if (!lines_.empty()) names.push_back(absl::StrCat(lines_.size(), " queues"));
  for (const auto& [token, pin] : pins_) {
    if (names.size() > kNamedPins) {
      names.push_back(absl::StrCat("and more, ", pins_.size(), " pins"));
      break;
    }
    names.push_back(absl::StrCat("'", tensors_.at(pin.tensor).spec.name, "'"));
  }
  return absl::StrJoin(names, ", ");
}

void MemoryStore::NoteChange() {
  ++changes_;
  changed_.SignalAll();
}

}  // namespace terrace
