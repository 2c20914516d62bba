#include "runtime/messages/intake.h"

#include <climits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/messages/request_checks.h"

namespace terrace {
namespace {

// A name is kept for as long as its tensor is.
constexpr size_t kMostNameBytes = 64 << 10;

absl::Status NoTensor(TensorId tensor) {
  return absl::InvalidArgumentError(absl::StrCat("no tensor ", tensor.value));
}

absl::Status NoQueue(int64_t queue) {
  return absl::InvalidArgumentError(absl::StrCat("no queue ", queue));
}

absl::Status CheckTierName(const std::string& tier) {
  if (tier.size() <= kMostNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a queue at a tier with a name of ", tier.size(),
                   " bytes: '", tier.substr(0, 32), "...'"));
}

// A value of an enumeration whose last one is `last`.
template <typename Enum>
absl::Status CheckValue(const char* what, Enum value, Enum last) {
  if (value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", static_cast<int>(value), ": there is none"));
}

}  // namespace

void Intake::OnRegistered(absl::Span<const TensorId> tensors,
                          absl::Span<const TensorSpec> specs) {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    sizes_.Put(tensors[i].value, specs[i].size_bytes);
  }
}

void Intake::OnUnregistered(TensorId tensor) {
  MutexLock lock(mutex_);
  sizes_.Erase(tensor.value);
}

void Intake::OnOpened(int64_t queue, int64_t slot_bytes, int slots) {
  MutexLock lock(mutex_);
  queues_[queue] = {slot_bytes, slots};
}

void Intake::OnOpenedBytes(int64_t queue) {
  MutexLock lock(mutex_);
  queues_[queue] = {INT64_MAX, INT_MAX, /*is_of_bytes=*/true};
}

int64_t Intake::SizeOf(TensorId tensor) const {
  MutexLock lock(mutex_);
  return SizeOfLocked(tensor);
}

int64_t Intake::SizeOfLocked(TensorId tensor) const {
  const int64_t* const size = sizes_.Find(tensor.value);
  return size == nullptr ? -1 : *size;
}

absl::Status Intake::Check(const RegisterRequest& request) const {
  for (const TensorSpec& spec : request.specs) {
    TERRACE_RETURN_IF_ERROR(CheckSpec(spec));
    if (spec.name.size() <= kMostNameBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name of ", spec.name.size(), " bytes: '",
                     spec.name.substr(0, 32), "...'; at most ", kMostNameBytes,
                     " are kept"));
  }
  return absl::OkStatus();
}

absl::Status Intake::Check(const UnregisterRequest& request) const {
  if (SizeOf(request.tensor) >= 0) return absl::OkStatus();
  return NoTensor(request.tensor);
}

absl::Status Intake::Check(const OpenRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckTierName(request.tier));
  if (request.slot_bytes <= 0 || request.slots <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", request.slots, " slots of ",
                     request.slot_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Intake::Check(const CloseQueueRequest& request) {
  MutexLock lock(mutex_);
  if (queues_.erase(request.queue) > 0) return absl::OkStatus();
  return NoQueue(request.queue);
}

absl::Status Intake::Check(const OpenBytesRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckTierName(request.tier));
  if (request.window_bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a window of ", request.window_bytes, " bytes"));
}

absl::Status Intake::Check(const PushRequest& request) const {
  return CheckGroup(request.wants, request.queue, /*is_of_bytes=*/false);
}

absl::Status Intake::Check(const PushBytesRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckTokens(request.in_use));
  TERRACE_RETURN_IF_ERROR(CheckLane(request.lane));
  return CheckGroup(request.wants, request.queue, /*is_of_bytes=*/true);
}

absl::Status Intake::CheckGroup(absl::Span<const Want> wants, int64_t queue,
                                bool is_of_bytes) const {
  for (const Want& want : wants) {
    TERRACE_RETURN_IF_ERROR(
        CheckValue("an access", want.access, Access::kOverwrite));
  }
  MutexLock lock(mutex_);
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return NoQueue(queue);
  if (found->second.is_of_bytes != is_of_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "queue ", queue, is_of_bytes ? " has slots" : " is one of bytes"));
  }
  return CheckWants(wants, found->second.slots, found->second.slot_bytes,
                    [this](TensorId tensor) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                      return SizeOfLocked(tensor);
                    });
}

absl::Status Intake::CheckQueueOfBytes(int64_t queue) const {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return NoQueue(queue);
  if (found->second.is_of_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("queue ", queue, " has slots"));
}

absl::Status Intake::CheckTokens(absl::Span<const uint64_t> tokens) const {
  for (const uint64_t token : tokens) {
    if (ClientOfToken(token) == client_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("pin ", token, " is of client ", ClientOfToken(token),
                     ", and this is client ", client_));
  }
  return absl::OkStatus();
}

absl::Status Intake::Check(const WaitingRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckTokens(request.in_use));
  MutexLock lock(mutex_);
  return CheckQueueOfBytes(request.queue);
}

absl::Status Intake::Check(const HoldAtMostRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckHeldBytes(request.bytes));
  MutexLock lock(mutex_);
  return CheckQueueOfBytes(request.queue);
}

absl::Status Intake::Check(const KeepRequest& request) const {
  return CheckTokens({&request.token, 1});
}

// A use of what has gone since says nothing.
absl::Status Intake::Check(TouchRequest& request) const {
  TERRACE_RETURN_IF_ERROR(CheckLane(request.lane));
  MutexLock lock(mutex_);
  std::erase_if(request.tensors,
                [this](TensorId tensor) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                  return SizeOfLocked(tensor) < 0;
                });
  return CheckQueueOfBytes(request.queue);
}

absl::Status Intake::Check(const EndPinRequest& request) const {
  TERRACE_RETURN_IF_ERROR(
      CheckValue("a pin's end", request.end, PinEnd::kDiscard));
  return CheckTokens({&request.token, 1});
}

absl::Status Intake::Check(const StepRequest& request) const {
  TERRACE_RETURN_IF_ERROR(
      CheckValue("a step's change", request.kind, StepRequest::Kind::kAbort));
  MutexLock lock(mutex_);
  if (queues_.contains(request.queue)) return absl::OkStatus();
  return NoQueue(request.queue);
}

// A hint may name what has gone: it is left out.
absl::Status Intake::Check(PrefetchRequest& request) const {
  MutexLock lock(mutex_);
  std::erase_if(request.tensors,
                [this](TensorId tensor) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                  return SizeOfLocked(tensor) < 0;
                });
  return absl::OkStatus();
}

}  // namespace terrace
