#include "daemon/jobs/media/job_media.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "daemon/jobs/media/charged_medium.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

int64_t MostOf(const JobTiers& tiers, const JobName& job,
               const TierSpec& tier) {
  const int64_t most = tiers.ledger->MostOf(job, TierName(tier));
  return std::max(RoundDown(most, kBlockBytes), kBlockBytes);
}

absl::StatusOr<std::unique_ptr<Medium>> OpenNamed(const MediumSource& media,
                                                  const TierSpec& tier,
                                                  int64_t most_bytes,
                                                  bool outlives = false) {
  TierSpec order = tier;
  order.budget_bytes = most_bytes;
  absl::StatusOr<std::unique_ptr<Medium>> medium = media.Open(order, outlives);
  if (medium.ok()) return medium;
  const absl::Status& why = medium.status();
  return Reworded(why, absl::StrCat("tier '", TierText(tier),
                                    "': ", absl::string_view(why.message())));
}

// As far as the host can say now.
absl::Status CheckNode(const TierSpec& tier, int64_t used_bytes) {
  if (tier.kind != TierKind::kFar) return absl::OkStatus();
  const absl::StatusOr<int64_t> available = AvailableNodeBytes(NodeOf(tier));
  const int64_t more = tier.budget_bytes - used_bytes;
  if (!available.ok() || more <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "tier '", TierText(tier), "': ", more, " bytes for jobs: ", "only ",
      *available, " bytes of that node are available"));
}

}  // namespace

int64_t MediaAddressBytes(const JobTiers& tiers, const JobName& job) {
  int64_t all = 0;
  for (const TierSpec& tier : tiers.mapped) all += MostOf(tiers, job, tier);
  return all;
}

absl::StatusOr<std::vector<LocalMapped>> OpenJobMedia(const JobTiers& tiers,
                                                      const JobName& job) {
  std::vector<LocalMapped> mapped;
  for (const TierSpec& tier : tiers.mapped) {
    TERRACE_ASSIGN_OR_RETURN(
        std::unique_ptr<Medium> medium,
        OpenNamed(*tiers.media, tier, MostOf(tiers, job, tier),
                  /*outlives=*/tiers.store != nullptr));
    LocalMapped& each = mapped.emplace_back();
    each.spec = tier;
    each.medium = std::move(medium);
  }
  return mapped;
}

void ChargeMedia(std::vector<LocalMapped>& mapped, const ChargeOf& charge) {
  for (LocalMapped& each : mapped) {
    each.medium = MakeChargedMedium(std::move(each.medium), charge(each.spec));
  }
}

absl::StatusOr<std::vector<ImageFacts::Mapped>> KeepJobMedia(
    const JobTiers& tiers, const std::vector<LocalMapped>& mapped) {
  std::vector<ImageFacts::Mapped> facts;
  for (size_t i = 0; i < mapped.size(); ++i) {
    const std::string tier = TierName(tiers.mapped[i]);
    std::optional<KeptMedium> kept = mapped[i].medium->Keep();
    if (!kept.has_value()) {
      return absl::UnavailableError(
          absl::StrCat("what it has of ", tier, " cannot be shared"));
    }
    facts.push_back({tier, mapped[i].medium->most_bytes(), *std::move(kept)});
  }
  return facts;
}

void ChargeKeptMedia(const JobTiers& tiers, KeptJob& kept,
                     const ChargeOf& charge) {
  const JobName job = kept.file.facts().job;
  for (size_t i = 0; i < kept.media.size(); ++i) {
    std::unique_ptr<Medium>& medium = kept.media[i];
    tiers.ledger->Add(job, TierName(tiers.mapped[i]), medium->size_bytes());
    medium = MakeChargedMedium(std::move(medium), charge(tiers.mapped[i]));
  }
}

std::vector<LocalMapped> MappedOf(const JobTiers& tiers, KeptJob& kept) {
  std::vector<LocalMapped> mapped;
  for (size_t i = 0; i < kept.media.size(); ++i) {
    LocalMapped& each = mapped.emplace_back();
    each.spec = tiers.mapped[i];
    each.medium = std::move(kept.media[i]);
  }
  kept.media.clear();
  return mapped;
}

absl::StatusOr<std::vector<LocalMapped>> OpenOwnMedia(
    const MediumSource& media, absl::Span<const TierSpec> tiers,
    const TierLedger& ledger) {
  std::vector<LocalMapped> mapped;
  for (const TierSpec& tier : tiers) {
    TERRACE_RETURN_IF_ERROR(CheckNode(tier, ledger.UsedOf(TierName(tier))));
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Medium> medium,
                             OpenNamed(media, tier, tier.budget_bytes));
    TERRACE_RETURN_IF_ERROR(
        medium->Grow({.least_bytes = kBlockBytes, .bytes = kBlockBytes})
            .status());
    LocalMapped& each = mapped.emplace_back();
    each.spec = tier;
    each.medium = std::move(medium);
  }
  return mapped;
}

}  // namespace terrace
