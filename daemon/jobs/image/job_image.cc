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
    DescriptorStore& store, const ImageFacts& facts, const Kept& kept) {
  TERRACE_ASSIGN_OR_RETURN(ImageFile file, ImageFile::Make(facts));
  const std::string key = NewKey();
  std::unique_ptr<JobImage> image(
      new JobImage(store, key, std::move(file), JobToken{}));
  bool is_kept = !key.empty() && image->token() != JobToken{} &&
                 store.Keep(MemoryName(key), kept.memory);
  for (size_t i = 0; i < kept.locks.size(); ++i) {
    is_kept = is_kept && store.Keep(LockName(key, i), kept.locks[i]);
  }
  for (size_t i = 0; i < kept.media.size(); ++i) {
    is_kept = is_kept && store.Keep(MediumName(key, i), kept.media[i]);
  }
  // The image last: without it the rest is nobody's.
  is_kept = is_kept && store.Keep(ImageName(key), image->file().file());
  if (is_kept) return image;
  return absl::UnavailableError("nobody keeps descriptors of a job");
}

std::unique_ptr<JobImage> JobImage::Reopen(DescriptorStore& store,
                                           KeptJob job) {
  return std::unique_ptr<JobImage>(
      new JobImage(store, std::move(job.key), std::move(job.file), job.token));
}

JobImage::JobImage(DescriptorStore& store, std::string key, ImageFile file,
                   const JobToken& accepted)
    : store_(store),
      names_(NamesOf(key, file.facts())),
      file_(std::move(file)),
      writer_(file_),
      token_(file_.MakeToken(accepted)) {}

// The image first: without it the rest is nobody's.
JobImage::~JobImage() {
  for (const std::string& each : names_) store_.Drop(each);
}

}  // namespace terrace
