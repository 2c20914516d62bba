#include "daemon/config/path_check.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "daemon/config/table_reader.h"

namespace terrace {

absl::Status CheckPaths(const DaemonConfig& config) {
  for (const DaemonConfig::Tier& each : config.tiers) {
    const TierSpec& tier = each.spec;
    const bool has_path =
        tier.kind == TierKind::kDisk || tier.kind == TierKind::kPmem;
    struct stat found = {};
    const bool is_other = has_path && stat(tier.place.c_str(), &found) == 0 &&
                          !S_ISDIR(found.st_mode);
    if (!is_other) continue;
    return ErrorAt(
        config.file, each.position,
        absl::StrCat(
            TierName(tier),
            ": a file or device is one job's; jobs share a directory"));
  }
  return absl::OkStatus();
}

}  // namespace terrace
