#include "runtime/client/queue_client.h"

#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"

namespace terrace {

QueueClient::QueueClient(int64_t id, const TierBase& base, QueueParts parts)
    : id_(id), base_(base), parts_(std::move(parts)) {}

absl::Status QueueClient::Ask(StepRequest::Kind kind, int64_t step) const {
  if (!IsOwnProcess()) return Closed();
  Question question(*parts_.port);
  TERRACE_RETURN_IF_ERROR(
      PostAndServe(StepRequest{question.id(), kind, id_, step}));
  return question.AwaitStatus(clock());
}

absl::StatusOr<std::vector<Pin>> QueueClient::MakePins(
    const std::shared_ptr<PinOwner>& owner,
    const absl::StatusOr<Grants>& grants) const {
  if (!grants.ok()) return grants.status();
  std::vector<Pin> pins;
  pins.reserve(grants->size());
  for (const Grant& grant : *grants) pins.push_back(MakePin(owner, grant));
  return pins;
}

Pin QueueClient::MakePin(const std::shared_ptr<PinOwner>& owner,
                         const Grant& grant) const {
  if (base_.data == nullptr) {
    return Pin(owner, grant.token, grant.tensor,
               base_.address + static_cast<uintptr_t>(grant.offset));
  }
  return Pin(owner, grant.token, grant.tensor,
             absl::Span<std::byte>(base_.data + grant.offset,
                                   static_cast<size_t>(grant.size_bytes)));
}

}  // namespace terrace
