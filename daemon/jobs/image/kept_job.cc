#include "daemon/jobs/image/kept_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/jobs/image/image_writer.h"
#include "daemon/jobs/image/other_process.h"
#include "tiers/memory/host_arena.h"

namespace terrace {
namespace {

constexpr absl::string_view kKeyBegins = "job-";

OwnDescriptor Take(std::map<std::string, OwnDescriptor>* files,
                   const std::string& name) {
  const auto found = files->find(name);
  return found == files->end() ? OwnDescriptor() : std::move(found->second);
}

absl::StatusOr<OwnDescriptor> OpenProcessOf(const ImageFacts& facts) {
  const auto process = static_cast<pid_t>(facts.process);
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor opened, OpenProcess(process));
  if (opened.ok() &&
      StartOf(process) == std::optional<uint64_t>(facts.start_time)) {
    return opened;
  }
  return absl::NotFoundError(absl::StrCat("process ", process, " of ",
                                          JobText(facts.job), " has gone"));
}

absl::Status CheckTiers(const ImageFacts& facts, const KeptTiers& tiers) {
  bool is_same = facts.disks.size() == tiers.disks.size() &&
                 facts.mapped.size() == tiers.mapped.size();
  for (size_t i = 0; is_same && i < facts.disks.size(); ++i) {
    is_same = facts.disks[i].place == tiers.disks[i].place;
  }
  for (size_t i = 0; is_same && i < facts.mapped.size(); ++i) {
    is_same = facts.mapped[i].tier == TierName(tiers.mapped[i]);
  }
  if (is_same) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration has other tiers than ",
                   JobText(facts.job), " rests on"));
}

// How far a mapped tier is in use: its last place's end. What it had grown by
// beyond that holds nothing.
int64_t UsedBytesOf(const RuntimeImage& image, TierId tier) {
  int64_t used = 0;
  for (const TensorImage& each : image.tensors) {
    if (each.below.tier == tier) {
      used = std::max(used, each.below.extent.end());
    }
  }
  return used;
}

// Each is numbered among its kind, as a runtime does.
absl::StatusOr<std::vector<std::unique_ptr<Medium>>> OpenMedia(
    const std::string& key, std::map<std::string, OwnDescriptor>* files,
    ImageFacts& facts, const RuntimeImage& image, const KeptTiers& tiers,
    absl::Time deadline) {
  std::vector<std::unique_ptr<Medium>> opened;
  std::map<TierKind, int> numbers;
  for (size_t i = 0; i < facts.mapped.size(); ++i) {
    ImageFacts::Mapped& each = facts.mapped[i];
    each.medium.file = Take(files, MediumName(key, i));
    TierSpec tier = tiers.mapped[i];
    const TierId id{tier.kind, numbers[tier.kind]++};
    const int64_t used = UsedBytesOf(image, id);
    if (used < 0 || used > each.most_bytes) {
      return absl::DataLossError(
          absl::StrCat("a job's image: ", used, " bytes of ", each.tier,
                       " are in use, of ", each.most_bytes));
    }
    tier.budget_bytes = each.most_bytes;
    TERRACE_ASSIGN_OR_RETURN(
        opened.emplace_back(),
        tiers.media->Reopen(tier, std::move(each.medium), used, deadline));
  }
  return opened;
}

}  // namespace

std::string ImageName(const std::string& key) {
  return absl::StrCat(key, "-image");
}

std::string MemoryName(const std::string& key) {
  return absl::StrCat(key, "-memory");
}

std::string LockName(const std::string& key, size_t disk) {
  return absl::StrCat(key, "-lock", disk);
}

std::string MediumName(const std::string& key, size_t medium) {
  return absl::StrCat(key, "-medium", medium);
}

std::vector<std::string> NamesOf(const std::string& key,
                                 const ImageFacts& facts) {
  std::vector<std::string> names = {ImageName(key), MemoryName(key)};
  for (size_t i = 0; i < facts.disks.size(); ++i) {
    names.push_back(LockName(key, i));
  }
  for (size_t i = 0; i < facts.mapped.size(); ++i) {
    names.push_back(MediumName(key, i));
  }
  return names;
}

std::string KeyOf(absl::string_view name) {
  const size_t end = name.rfind('-');
  const bool is_one = absl::StartsWith(name, kKeyBegins) &&
                      end != absl::string_view::npos && end > kKeyBegins.size();
  return is_one ? std::string(name.substr(0, end)) : "";
}

absl::StatusOr<KeptJob> OpenKeptJob(const std::string& key,
                                    std::map<std::string, OwnDescriptor> files,
                                    const KeptTiers& tiers,
                                    absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(ImageFile file,
                           ImageFile::Reopen(Take(&files, ImageName(key))));
  ImageFacts facts = file.facts();
  TERRACE_RETURN_IF_ERROR(CheckTiers(facts, tiers));
  const std::vector<TierSpec>& disks = tiers.disks;
  // First, and media: what is of no use goes with them.
  std::vector<std::unique_ptr<DiskFile>> opened;
  for (size_t i = 0; i < disks.size(); ++i) {
    KeptFile kept = std::move(facts.disks[i].file);
    kept.lock = Take(&files, LockName(key, i));
    TERRACE_ASSIGN_OR_RETURN(
        opened.emplace_back(),
        ReopenDiskFile(
            {.path = disks[i].place, .budget_bytes = disks[i].budget_bytes},
            std::move(kept), deadline));
  }
  absl::StatusOr<RuntimeImage> read = ReadImage(file);
  TERRACE_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Medium>> media,
      OpenMedia(key, &files, facts, read.ok() ? *read : RuntimeImage(), tiers,
                deadline));
  OwnDescriptor memory = Take(&files, MemoryName(key));
  if (!memory.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory of ", JobText(facts.job), " was not kept"));
  }
  absl::StatusOr<OwnDescriptor> opened_process = OpenProcessOf(facts);
  if (!opened_process.ok()) {
    // Who kept it lets go of it by and by.
    HostArena::EmptyMemoryFile(memory);
    return opened_process.status();
  }
  OwnDescriptor process = *std::move(opened_process);
  TERRACE_ASSIGN_OR_RETURN(RuntimeImage image, std::move(read));
  return KeptJob{.key = key,
                 .file = std::move(file),
                 .image = std::move(image),
                 .memory = std::move(memory),
                 .process = std::move(process),
                 .disks = std::move(opened),
                 .media = std::move(media)};
}

}  // namespace terrace
