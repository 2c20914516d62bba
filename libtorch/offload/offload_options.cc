#include "libtorch/offload/offload_options.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr double kShareWithPlaces = 0.1;  // where no budget was said
using Sizes = ModelSizes;

bool HasHbmBudget(const OffloadOptions& options) {
  return options.hbm_budget_bytes > 0 || options.hbm_budget_share > 0;
}

constexpr double kMostBytes = static_cast<double>(int64_t{1} << 62);

absl::Status CheckBudget(const OffloadOptions& options) {
  if (options.memory_budget_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_budget_bytes is ", options.memory_budget_bytes));
  }
  // NaN fails this comparison too.
  if (!(options.memory_budget_share >= 0) ||
      std::isinf(options.memory_budget_share)) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_budget_share is ", options.memory_budget_share,
                     "; 0.1 is a tenth of the parameters"));
  }
  if (options.memory_budget_bytes > 0 && options.memory_budget_share > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_budget_bytes is ", options.memory_budget_bytes,
                     " and memory_budget_share ", options.memory_budget_share,
                     "; one of them says it all"));
  }
  return absl::OkStatus();
}

// Without a share, or parameters that it is of, the budget stays kEverything.
absl::Status TakeShare(double share, int64_t parameter_bytes,
                       PlaceOptions& places) {
  if (share == 0 || parameter_bytes == 0) return absl::OkStatus();
  const double bytes = std::ceil(share * static_cast<double>(parameter_bytes));
  if (bytes >= kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_budget_share is ", share,
                     ", which is more bytes than can be counted"));
  }
  places.budget_bytes = static_cast<int64_t>(bytes);
  places.at_least_minimum = true;
  return absl::OkStatus();
}

absl::Status TakeBudget(const OffloadOptions& options, int64_t parameter_bytes,
                        PlaceOptions& places) {
  if (options.memory_budget_bytes > 0) {
    places.budget_bytes = options.memory_budget_bytes;
    return absl::OkStatus();
  }
  double share = options.memory_budget_share;
  const bool has_below = !options.nvme_paths.empty() || !options.daemon.empty();
  if (share == 0 && has_below) share = kShareWithPlaces;
  return TakeShare(share, parameter_bytes, places);
}

absl::Status TakeTier(const TierSpec& tier, PlaceOptions& places,
                      int64_t& hbm_bytes) {
  TERRACE_RETURN_IF_ERROR(CheckTier(tier));
  switch (tier.kind) {
    case TierKind::kDram:
      if (places.budget_bytes != PlaceOptions::kEverything) {
        return absl::InvalidArgumentError(
            absl::StrCat("tiers: '", TierText(tier),
                         "' is a second one of memory; it has one"));
      }
      places.budget_bytes = tier.budget_bytes;
      places.memory_place = tier.place;
      return absl::OkStatus();
    case TierKind::kDisk:
      places.paths.push_back(tier.place);
      places.path_budgets.push_back(tier.budget_bytes);
      return absl::OkStatus();
    case TierKind::kFar:
    case TierKind::kPmem:
      places.mapped_tiers.push_back(tier);
      return absl::OkStatus();
    case TierKind::kHbm:
      if (!places.device.empty()) {
        return absl::UnimplementedError(
            absl::StrCat("tiers: '", TierText(tier),
                         "' is a second device; a model is offloaded on one"));
      }
      places.device = tier.place;
      hbm_bytes = tier.budget_bytes;
      return absl::OkStatus();
  }
  return absl::InternalError("a tier of no kind");
}

// The budget that was taken is the CPU's memory; a device's is above it.
void PutDeviceAbove(int64_t hbm_bytes, PlaceOptions& places) {
  places.below_device_bytes = std::exchange(places.budget_bytes, hbm_bytes);
  places.below_device_is_share = std::exchange(places.at_least_minimum, false);
}

absl::Status CheckHbm(const OffloadOptions& options) {
  if (options.hbm_budget_bytes < 0 || !(options.hbm_budget_share >= 0) ||
      std::isinf(options.hbm_budget_share)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hbm_budget_bytes is ", options.hbm_budget_bytes,
                     " and hbm_budget_share ", options.hbm_budget_share));
  }
  const bool both =
      options.hbm_budget_bytes > 0 && options.hbm_budget_share > 0;
  if (!both && (options.tiers.empty() || !HasHbmBudget(options))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      both ? "hbm_budget_bytes and hbm_budget_share: one of them says it all"
           : "tiers and hbm_budget together: the tiers say it all");
}

// The short form: a budget of the memory of the device that has the model.
absl::Status TakeHbmBudget(const OffloadOptions& options, const Sizes& sizes,
                           PlaceOptions& places) {
  if (!HasHbmBudget(options)) return absl::OkStatus();
  if (sizes.device.is_cpu()) {
    return absl::InvalidArgumentError(
        "hbm_budget: the model is in CPU memory, and on no device");
  }
  places.device = sizes.device.str();
  PlaceOptions hbm;
  hbm.budget_bytes = options.hbm_budget_bytes;
  TERRACE_RETURN_IF_ERROR(
      TakeShare(options.hbm_budget_share, sizes.parameter_bytes, hbm));
  PutDeviceAbove(hbm.budget_bytes, places);
  places.at_least_minimum = hbm.at_least_minimum;
  return absl::OkStatus();
}

absl::Status CheckDevice(const Sizes& sizes, const PlaceOptions& places) {
  if (sizes.device.is_meta()) {
    if (places.device.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "a checkpoint's parameters come to CPU memory, and not to ",
        places.device));
  }
  const std::string has = sizes.device.is_cpu() ? "" : sizes.device.str();
  const bool has_none = sizes.parameter_bytes == 0 && places.device.empty();
  if (has_none || has == places.device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      places.device.empty()
          ? absl::StrCat("the model is on ", has,
                         ": its tiers begin with hbm:", has,
                         "=..., or hbm_budget says how much of it they have")
          : absl::StrCat("tier 'hbm:", places.device, "': the model is on ",
                         sizes.device.str()));
}

absl::Status TakeTiers(const OffloadOptions& options, int64_t parameter_bytes,
                       PlaceOptions& places) {
  if (options.memory_budget_bytes > 0 || options.memory_budget_share > 0 ||
      !options.nvme_paths.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tiers and ",
                     options.nvme_paths.empty() ? "memory_budget" : "nvme_path",
                     " together: the tiers say it all"));
  }
  places.named_tiers = true;
  int64_t hbm_bytes = 0;
  for (const TierSpec& tier : options.tiers) {
    TERRACE_RETURN_IF_ERROR(TakeTier(tier, places, hbm_bytes));
  }
  if (!places.device.empty()) {
    PutDeviceAbove(hbm_bytes, places);
    return absl::OkStatus();
  }
  if (places.budget_bytes != PlaceOptions::kEverything) return absl::OkStatus();
  return TakeShare(kShareWithPlaces, parameter_bytes, places);
}

// Checks that nothing is said beside a daemon that its configuration says.
absl::Status CheckDaemon(const OffloadOptions& options) {
  if (options.daemon.empty()) {
    if (options.job.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("job '", options.job, "' without a daemon"));
  }
  for (const TierSpec& tier : options.tiers) {
    if (tier.kind != TierKind::kHbm) continue;
    return absl::UnimplementedError(
        absl::StrCat("tier '", TierText(tier), "' beside a daemon"));
  }
  const char* const what = !options.nvme_paths.empty()           ? "nvme_paths"
                           : !options.tiers.empty()              ? "tiers"
                           : options.engine != EngineKind::kAuto ? "engine"
                           : !options.machine_profile.empty()
                               ? "machine_profile"
                           : options.unsafe_media ? "unsafe_media"
                                                  : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("daemon and ", what,
                   " together: the daemon's configuration says it for all "
                   "jobs"));
}

// Checks options that may be asked for each, but not together.
absl::Status CheckWishes(const OffloadOptions& options) {
  if (options.parameters) return absl::OkStatus();
  if (!options.checkpoint.empty()) {
    return absl::InvalidArgumentError(
        "a checkpoint brings parameters below, and parameters = false leaves "
        "them in memory");
  }
  if (options.activations) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "parameters = false without activations leaves nothing to offload");
}

absl::Status TakeActivations(const OffloadOptions& options,
                             PlaceOptions& places) {
  if (!options.activations) return absl::OkStatus();
  if (options.activations_above_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations_above_bytes is ",
                     options.activations_above_bytes, "; it is at least 1"));
  }
  if (!places.has_below()) {
    return absl::InvalidArgumentError(
        "activations need a tier below memory: nvme_paths, tiers or a daemon");
  }
  places.activations_above = options.activations_above_bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlaceOptions> PlacesOf(const OffloadOptions& options,
                                      const Sizes& sizes) {
  const int64_t parameter_bytes = sizes.parameter_bytes;
  TERRACE_RETURN_IF_ERROR(CheckHbm(options));
  TERRACE_RETURN_IF_ERROR(CheckWishes(options));
  TERRACE_RETURN_IF_ERROR(CheckBudget(options));
  TERRACE_RETURN_IF_ERROR(CheckDaemon(options));
  PlaceOptions places;
  places.daemon = options.daemon;
  places.job = options.job;
  if (options.tiers.empty()) {
    places.paths = options.nvme_paths;
    TERRACE_RETURN_IF_ERROR(TakeBudget(options, parameter_bytes, places));
    TERRACE_RETURN_IF_ERROR(TakeHbmBudget(options, sizes, places));
  } else {
    TERRACE_RETURN_IF_ERROR(TakeTiers(options, parameter_bytes, places));
  }
  TERRACE_RETURN_IF_ERROR(CheckDevice(sizes, places));
  TERRACE_RETURN_IF_ERROR(TakeActivations(options, places));
  places.unsafe_media = options.unsafe_media;
  places.engine = options.engine;
  places.machine_profile = options.machine_profile;
  places.threads = options.threads;
  return places;
}

}  // namespace terrace
