#include "daemon/jobs/image/job_image.h"

#include <sys/random.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// "": there is no randomness to be had.
std::string NewKey() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) return "";
  return absl::StrCat("job-", absl::Hex(number, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobImage>> JobImage::Make(
    DescriptorStore& store, const ImageFacts& facts,
    const OwnDescriptor& memory, const std::vector<OwnDescriptor>& locks) {
  TERRACE_ASSIGN_OR_RETURN(ImageFile file, ImageFile::Make(facts));
  const std::string key = NewKey();
  std::unique_ptr<JobImage> image(
      new JobImage(store, key, locks.size(), std::move(file), JobToken{}));
  // The image last: without it the rest is nobody's.
  bool is_kept = !key.empty() && image->token() != JobToken{} &&
                 store.Keep(MemoryName(key), memory);
  for (size_t i = 0; i < locks.size(); ++i) {
    is_kept = is_kept && store.Keep(LockName(key, i), locks[i]);
  }
  is_kept = is_kept && store.Keep(ImageName(key), image->file().file());
  if (is_kept) return image;
  return absl::UnavailableError("nobody keeps descriptors of a job");
}

std::unique_ptr<JobImage> JobImage::Reopen(DescriptorStore& store,
                                           KeptJob job) {
  const size_t disks = job.file.facts().disks.size();
  return std::unique_ptr<JobImage>(new JobImage(
      store, std::move(job.key), disks, std::move(job.file), job.token));
}

JobImage::JobImage(DescriptorStore& store, std::string key, size_t disks,
                   ImageFile file, const JobToken& accepted)
    : store_(store),
      key_(std::move(key)),
      disks_(disks),
      file_(std::move(file)),
      writer_(file_),
      token_(file_.MakeToken(accepted)) {}

JobImage::~JobImage() {
  store_.Drop(ImageName(key_));
  store_.Drop(MemoryName(key_));
  for (size_t i = 0; i < disks_; ++i) store_.Drop(LockName(key_, i));
}

}  // namespace terrace
