#include "runtime/mover/refusal.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {

absl::Status RefusalOf(const Want& want, const Tensor* tensor, const Tier& tier,
                       const Transfers& transfers,
                       const RestingTiers& resting) {
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no tensor ", want.tensor.value));
  }
  if (!tensor->loss().ok()) return tensor->loss();
  const absl::Status health = tier.Health();
  if (!health.ok()) {
    return Reworded(health, absl::StrCat("tensor '", tensor->spec.name,
                                         "' cannot come to ", tier.name(), ": ",
                                         absl::string_view(health.message())));
  }
  if (tensor->generation() == 0 && !tensor->delivered() &&
      want.access != Access::kOverwrite) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor->spec.name, "' was never written"));
  }
  // It is unknown until when: its last move passed its deadline.
  const bool writes = want.access != Access::kRead;
  const bool is_late = tensor->drain() == Drain::kLate &&
                       (writes || tensor->at(tier.id()) == nullptr);
  const bool of_device = is_late && IsOfDevice(transfers.Of(*tensor).leg());
  if (is_late && !of_device) {
    const std::string& path = resting.name(transfers.DrainTier(*tensor));
    const int64_t offset = transfers.Of(*tensor).below.offset;
    return WithIoFault(
        absl::DeadlineExceededError(absl::StrCat(
            "tensor '", tensor->spec.name, "': a write to ", path, ", offset ",
            offset, ", ", ResidentBytes(tensor->spec.size_bytes),
            " bytes, is past its deadline and still under way")),
        {.path = path, .offset = offset});
  }
  const bool is_read_late =
      tensor->being_read() && tensor->ArrivingAt() == kNoTier;
  if (of_device || (is_read_late && writes)) {
    return absl::DeadlineExceededError(
        absl::StrCat("tensor '", tensor->spec.name,
                     "': a copy between memory and the device, ",
                     ResidentBytes(tensor->spec.size_bytes),
                     " bytes, is past its deadline and still under way"));
  }
  return absl::OkStatus();
}

}  // namespace terrace
