#include "daemon/jobs/media/charged_medium.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "daemon/jobs/media/growth_charge.h"

namespace terrace {
namespace {

// More than a tier has.
constexpr int64_t kMostBytes = int64_t{1} << 60;

class ChargedMedium final : public Medium {
 public:
  ChargedMedium(std::shared_ptr<Medium> medium, std::unique_ptr<Charge> charge)
      : charge_(std::move(charge), medium->size_bytes()),
        medium_(std::move(medium)) {}

  const std::string& name() const override { return medium_->name(); }
  int64_t size_bytes() const override { return medium_->size_bytes(); }
  std::vector<Extent> bad_ranges() const override {
    return medium_->bad_ranges();
  }

  int64_t most_bytes() const override { return kMostBytes; }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    const absl::StatusOr<Growth> asked = charge_.Take(growth);
    if (asked.ok()) return charge_.Keep(*asked, medium_->Grow(*asked));
    return WithIoFault(asked.status(), {.path = name()});
  }

  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    return medium_->Read(offset, to);
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    return medium_->Write(offset, from);
  }
  uint64_t seal_id() const override { return medium_->seal_id(); }
  std::optional<KeptMedium> Keep() const override { return medium_->Keep(); }
  absl::Status Remove() override {
    absl::Status removed = medium_->Remove();
    if (removed.ok()) charge_.GiveAll();
    return removed;
  }

 private:
  // The medium goes first, and its bytes with it.
  GrowthCharge charge_;
  const std::shared_ptr<Medium> medium_;
};

}  // namespace

std::unique_ptr<Medium> MakeChargedMedium(std::shared_ptr<Medium> medium,
                                          std::unique_ptr<Charge> charge) {
  return std::make_unique<ChargedMedium>(std::move(medium), std::move(charge));
}

}  // namespace terrace
