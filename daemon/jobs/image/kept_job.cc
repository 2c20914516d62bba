#include "daemon/jobs/image/kept_job.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/jobs/image/image_writer.h"
#include "daemon/jobs/image/other_process.h"

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

absl::Status CheckDisks(const ImageFacts& facts,
                        const std::vector<TierSpec>& disks) {
  bool is_same = facts.disks.size() == disks.size();
  for (size_t i = 0; is_same && i < disks.size(); ++i) {
    is_same = facts.disks[i].place == disks[i].place;
  }
  if (is_same) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration has other disks than ",
                   JobText(facts.job), " rests on"));
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

std::string KeyOf(absl::string_view name) {
  const size_t end = name.rfind('-');
  const bool is_one = absl::StartsWith(name, kKeyBegins) &&
                      end != absl::string_view::npos && end > kKeyBegins.size();
  return is_one ? std::string(name.substr(0, end)) : "";
}

absl::StatusOr<KeptJob> OpenKeptJob(const std::string& key,
                                    std::map<std::string, OwnDescriptor> files,
                                    const std::vector<TierSpec>& disks,
                                    absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(ImageFile file,
                           ImageFile::Reopen(Take(&files, ImageName(key))));
  ImageFacts facts = file.facts();
  TERRACE_RETURN_IF_ERROR(CheckDisks(facts, disks));
  // First: what is of no use goes with them.
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
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor process, OpenProcessOf(facts));
  OwnDescriptor memory = Take(&files, MemoryName(key));
  if (!memory.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory of ", JobText(facts.job), " was not kept"));
  }
  TERRACE_ASSIGN_OR_RETURN(RuntimeImage image, ReadImage(file));
  return KeptJob{.key = key,
                 .file = std::move(file),
                 .image = std::move(image),
                 .memory = std::move(memory),
                 .process = std::move(process),
                 .disks = std::move(opened)};
}

}  // namespace terrace
