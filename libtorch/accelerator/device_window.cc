#include "libtorch/accelerator/device_window.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// One in each direction, and the next of each.
constexpr size_t kMostCopies = 4;

std::string TextOf(const DeviceTensor& tensor, const absl::Status& why) {
  return absl::StrCat("terrace: '", tensor.name(), "' ",
                      FormatBytes(tensor.size_bytes()), ": ", why.message());
}

}  // namespace

DeviceWindow::DeviceWindow(StreamedDevice& memory, const Options& options)
    : memory_(memory),
      room_(memory, options.budget_bytes, options.segment_bytes),
      copies_(memory) {}

DeviceWindow::~DeviceWindow() {
  copies_.Settle(0).IgnoreError();
  MutexLock lock(mutex_);
  TERRACE_CHECK(tensors_.empty());
}

absl::Status DeviceWindow::Add(std::shared_ptr<DeviceTensor> tensor) {
  TERRACE_RETURN_IF_ERROR(
      tensor->uses().Begin(memory_, tensor->home(), nullptr));
  tensor->SetHeld(true);
  Hold(tensor->size_bytes());
  MutexLock lock(mutex_);
  tensors_.push_back(std::move(tensor));
  List();
  return absl::OkStatus();
}

void DeviceWindow::List() {
  ListedTensors::List list;
  for (const auto& tensor : tensors_) list.push_back(tensor.get());
  listed_.Set(std::move(list));
}

bool DeviceWindow::Remove(DeviceTensor& tensor) {
  if (!tensor.word().BeginRemove()) return false;
  std::shared_ptr<DeviceTensor> last;  // ends without the lock
  {
    MutexLock lock(mutex_);
    const auto found = absl::c_find_if(
        tensors_, [&](const auto& each) { return each.get() == &tensor; });
    TERRACE_CHECK(found != tensors_.end());
    last = std::move(*found);
    tensors_.erase(found);
    List();
  }
  if (tensor.is_held()) Hold(-tensor.size_bytes());
  tensor.SetHeld(false);
  if (auto ended = tensor.TakeWrittenBack()) memory_.Wait(*ended).IgnoreError();
  copies_.Settle(kMostCopies).IgnoreError();
  tensor.place().Settle();
  tensor.SetFailure(absl::FailedPreconditionError(
      absl::StrCat("'", tensor.name(), "' is managed no more")));
  tensor.word().End(Residency::kFailed);
  return true;
}

bool DeviceWindow::IsGone(DeviceTensor& tensor) {
  Residency state = Residency::kResident;
  if (!tensor.word().BeginEvict()) {
    state = Residency::kCold;
    if (!tensor.word().BeginLoad()) {
      state = Residency::kFailed;
      if (!tensor.word().BeginRetry()) return false;  // it moves
    }
  }
  if (state != Residency::kResident) tensor.place().Settle();
  const bool is_gone = tensor.place().is_gone();
  tensor.word().End(state);
  return is_gone;
}

absl::Status DeviceWindow::Fetch(DeviceTensor& tensor) {
  while (true) {
    const Residency state = tensor.word().Await();
    if (state == Residency::kResident) return absl::OkStatus();
    if (state == Residency::kFailed) return tensor.failure();
    if (tensor.word().BeginLoad()) break;
  }
  // An event of a home stream that is captured would be the graph's.
  const bool is_capturing = IsCapturing() || memory_.IsCapturing(tensor.home());
  absl::Status status =
      is_capturing ? absl::FailedPreconditionError(
                         "a graph is being captured, which cannot bring it; "
                         "hold a lease before the capture begins")
                   : Bring(tensor);
  if (status.ok()) {
    ++fetches_;
    tensor.word().End(Residency::kResident);
    return status;
  }
  const std::string text = TextOf(tensor, status);
  status = absl::Status(status.code(), text);
  NoteError(status);
  tensor.SetFailure(status);
  // What can be used again is tried again by its next operation.
  const bool is_lasting = !tensor.place().Refuse(text);
  tensor.word().End(is_lasting ? Residency::kFailed : Residency::kCold);
  return status;
}

absl::Status DeviceWindow::Use(DeviceTensor& tensor, bool is_written,
                               bool is_capturing) {
  const absl::Status status = tensor.uses().Use(
      memory_, tensor.place(), memory_.CurrentStream(), is_capturing);
  if (!status.ok()) {
    const std::string text = TextOf(tensor, status);
    if (tensor.place().Refuse(text)) tensor.SetRefused();
    const absl::Status told(status.code(), text);
    NoteError(told);
    return told;
  }
  if (tensor.Unrefuse()) tensor.place().Forgive();
  tensor.SetLastUse(++uses_);
  if (is_written) tensor.SetWritten(true);
  return absl::OkStatus();
}

bool DeviceWindow::IsCapturing() {
  return memory_.IsCapturing(memory_.CurrentStream());
}

absl::Status DeviceWindow::Bring(DeviceTensor& tensor) {
  tensor.place().Settle();
  MakeRoom(tensor.size_bytes());
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBlock> block,
                           AllocateFor(tensor));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostBytes> held,
                           HoldBelow(tensor, /*is_written=*/false));
  // The CPU may read for the copy at once, where memory is not pinned.
  if (auto written = tensor.TakeWrittenBack()) {
    TERRACE_RETURN_IF_ERROR(memory_.Wait(*written));
  }
  std::shared_ptr<DeviceEvent> arrived;
  const absl::Status copied = CopyUp(tensor, *block, held->data(), &arrived);
  if (!copied.ok()) {
    // A copy may have begun: nothing of it ends before.
    memory_.WaitForAll().IgnoreError();
    return copied;
  }
  if (!tensor.place().Install(std::move(block))) {
    memory_.Wait(*arrived).IgnoreError();
    return absl::FailedPreconditionError("its storage has other memory");
  }
  tensor.SetHeld(true);
  Hold(tensor.size_bytes());
  copies_.Add(std::move(arrived), std::move(held));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HostBytes>> DeviceWindow::HoldBelow(
    DeviceTensor& tensor, bool is_written) {
  NoteError(copies_.Settle(kMostCopies - 1));
  absl::StatusOr<std::unique_ptr<HostBytes>> held =
      tensor.below().Hold(is_written);
  if (held.ok() || !absl::IsResourceExhausted(held.status())) return held;
  // The room that it lacks may be what the copies before it hold.
  NoteError(copies_.Settle(0));
  return tensor.below().Hold(is_written);
}

absl::Status DeviceWindow::CopyUp(DeviceTensor& tensor, DeviceBlock& block,
                                  const std::byte* source,
                                  std::shared_ptr<DeviceEvent>* arrived) {
  const StreamId copies = memory_.CopyStream(CopyDirection::kToDevice);
  // Earlier work of the home stream may still use the block's memory.
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> allocated,
                           memory_.Record(tensor.home()));
  TERRACE_RETURN_IF_ERROR(memory_.Await(copies, *allocated));
  TERRACE_RETURN_IF_ERROR(memory_.Copy(
      CopyDirection::kToDevice, block.address(), source, tensor.size_bytes()));
  TERRACE_ASSIGN_OR_RETURN(*arrived, memory_.Record(copies));
  return tensor.uses().Begin(memory_, tensor.home(), *arrived);
}

absl::StatusOr<std::unique_ptr<DeviceBlock>> DeviceWindow::AllocateFor(
    DeviceTensor& tensor) {
  absl::StatusOr<std::unique_ptr<DeviceBlock>> block =
      memory_.Allocate(tensor.size_bytes(), tensor.home());
  if (block.ok() || !absl::IsResourceExhausted(block.status())) return block;
  if (EvictAll() == 0) return block;
  return memory_.Allocate(tensor.size_bytes(), tensor.home());
}

void DeviceWindow::MakeRoom(int64_t bytes) {
  const int64_t held = held_bytes_.load();
  const int64_t most = room_.TensorBytes(held) - bytes;
  if (held <= most) return;
  for (const auto& tensor : OldestFirst()) {
    if (held_bytes_.load() <= most) return;
    Evict(*tensor);
  }
}

bool DeviceWindow::MayGo(DeviceTensor& tensor) {
  switch (tensor.uses().FindHindrance(memory_)) {
    case Hindrance::kNone:
      return true;
    case Hindrance::kUnfinished: {
      const absl::Status status = tensor.uses().AwaitCollectives(memory_);
      NoteError(status);
      return status.ok();
    }
    case Hindrance::kCapture:
    case Hindrance::kGraph:
    case Hindrance::kCollective:
      return false;
  }
  return false;
}

bool DeviceWindow::Evict(DeviceTensor& tensor) {
  if (!tensor.word().BeginEvict()) return false;
  const bool is_alive = tensor.place().Keep();
  const bool is_copied = is_alive && tensor.is_written();
  absl::Status status;
  bool may_go = !is_alive || MayGo(tensor);
  if (may_go && is_copied) {
    // It is others' as soon as the copy is done, and its home's not before.
    status =
        tensor.place().RecordUse(memory_.CopyStream(CopyDirection::kToHost));
    if (status.ok()) status = CopyDown(tensor).status();
    NoteError(status);
    may_go = status.ok();
  }
  if (!may_go) {
    tensor.place().Settle();
    tensor.word().End(Residency::kResident);
    return false;
  }
  if (Drop(tensor)) {
    ++evictions_;
    if (!is_copied) ++clean_drops_;
  }
  IsGone(tensor);  // lets go what that keeps
  return true;
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> DeviceWindow::CopyDown(
    DeviceTensor& tensor) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostBytes> held,
                           HoldBelow(tensor, /*is_written=*/true));
  const StreamId copies = memory_.CopyStream(CopyDirection::kToHost);
  TERRACE_RETURN_IF_ERROR(tensor.uses().AwaitUses(memory_, copies));
  TERRACE_RETURN_IF_ERROR(memory_.Copy(CopyDirection::kToHost, held->data(),
                                       tensor.place().address(),
                                       tensor.size_bytes()));
  absl::StatusOr<std::shared_ptr<DeviceEvent>> ended = memory_.Record(copies);
  if (!ended.ok()) {
    memory_.WaitForAll().IgnoreError();  // it has begun
    return ended;
  }
  copies_.Add(*ended, std::move(held));
  tensor.SetWrittenBack(*ended);
  tensor.SetWritten(false);
  return ended;
}

bool DeviceWindow::Drop(DeviceTensor& tensor) {
  // The allocator knows each stream that may still use it.
  const std::unique_ptr<DeviceBlock> block = tensor.place().Take();
  if (tensor.is_held()) Hold(-tensor.size_bytes());
  tensor.SetHeld(false);
  tensor.word().End(Residency::kCold);
  return block != nullptr;
}

int64_t DeviceWindow::EvictAll() {
  int64_t evicted = 0;
  for (const auto& tensor : All()) evicted += Evict(*tensor) ? 1 : 0;
  NoteError(copies_.Settle(0));
  return evicted;
}

absl::Status DeviceWindow::WriteBack() {
  absl::Status first;
  for (const auto& tensor : All()) {
    if (!tensor->is_written() || !tensor->word().BeginEvict()) continue;
    if (tensor->place().Keep() && MayGo(*tensor)) {
      absl::StatusOr<std::shared_ptr<DeviceEvent>> ended = CopyDown(*tensor);
      // What writes to it next, or has its memory, comes after the copy.
      first.Update(ended.ok() ? tensor->uses().Begin(memory_, tensor->home(),
                                                     *std::move(ended))
                              : ended.status());
    }
    tensor->place().Settle();
    tensor->word().End(Residency::kResident);
  }
  NoteError(first);
  return first;
}

void DeviceWindow::BeginStep() {
  room_.TensorBytes(held_bytes_.load());  // what others have here counts
  room_.BeginStep();
  for (const auto& tensor : All()) tensor->uses().NoteStep();
  // What was dropped by relief is let go.
  for (const auto& tensor : All()) IsGone(*tensor);
  NoteError(copies_.Settle(kMostCopies));
}

bool DeviceWindow::IsUnderBudget() { return room_.HasRoomForMiss(); }

int64_t DeviceWindow::DropClean() {
  const ListedTensors::Look look(listed_);
  ListedTensors::List here = look.tensors();
  std::erase_if(here, [](DeviceTensor* tensor) {
    return tensor->word().state() != Residency::kResident;
  });
  std::sort(here.begin(), here.end(),
            [](const DeviceTensor* a, const DeviceTensor* b) {
              return a->last_use() < b->last_use();
            });
  int64_t dropped = 0;
  for (DeviceTensor* const tensor : here) {
    if (dropped >= room_.most_wanted_bytes()) break;
    if (!tensor->word().BeginEvict()) continue;
    // kUnfinished stays too: nothing here waits for the device.
    if (tensor->is_written() ||
        tensor->uses().FindHindrance(memory_) != Hindrance::kNone) {
      tensor->word().End(Residency::kResident);
    } else if (Drop(*tensor)) {  // what that keeps is let go elsewhere
      dropped += tensor->size_bytes();
      ++evictions_;
      ++clean_drops_;
      ++relief_drops_;
    }
  }
  return dropped;
}

DeviceWindow::Tensors DeviceWindow::All() const {
  MutexLock lock(mutex_);
  return tensors_;
}

DeviceWindow::Tensors DeviceWindow::OldestFirst() const {
  Tensors tensors = All();
  std::erase_if(tensors, [](const auto& tensor) {
    return tensor->word().state() != Residency::kResident;
  });
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) {
                     return a->last_use() < b->last_use();
                   });
  return tensors;
}

void DeviceWindow::NoteError(const absl::Status& status) {
  if (status.ok()) return;
  MutexLock lock(mutex_);
  first_error_.Update(status);
}

void DeviceWindow::Hold(int64_t bytes) {
  const int64_t held = held_bytes_.fetch_add(bytes) + bytes;
  int64_t peak = peak_bytes_.load();
  while (peak < held && !peak_bytes_.compare_exchange_weak(peak, held)) {
  }
}

DeviceWindowStats DeviceWindow::stats() const {
  DeviceWindowStats stats;
  stats.held_bytes = held_bytes_.load();
  stats.peak_bytes = peak_bytes_.load();
  stats.fetches = fetches_.load();
  stats.evictions = evictions_.load();
  stats.clean_drops = clean_drops_.load();
  stats.relief_drops = relief_drops_.load();
  MutexLock lock(mutex_);
  stats.first_error = first_error_;
  return stats;
}

}  // namespace terrace
