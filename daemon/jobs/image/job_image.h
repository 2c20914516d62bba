// That another daemon may go on with a job's runtime once this one has gone:
// the runtime's image, and descriptors of it, of its memories and of its files'
// locks, are kept elsewhere as long as this lives.
//
// The keeper is the mover's; the rest belongs to the session's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "daemon/jobs/image/descriptor_store.h"
#include "daemon/jobs/image/image_file.h"
#include "daemon/jobs/image/image_writer.h"
#include "daemon/jobs/image/kept_job.h"

namespace terrace {

class JobImage {
 public:
  struct Kept {
    const OwnDescriptor& memory;
    std::vector<OwnDescriptor> locks;  // one a disk
    std::vector<OwnDescriptor> media;  // one a mapped tier
  };
  // `store` outlives it. Unavailable: the store keeps nothing; errors of
  // ImageFile::Make.
  static absl::StatusOr<std::unique_ptr<JobImage>> Make(DescriptorStore& store,
                                                        const ImageFacts& facts,
                                                        const Kept& kept);
  // Of what is kept there already; the job's memory and disks are another's.
  static std::unique_ptr<JobImage> Reopen(DescriptorStore& store, KeptJob job);
  ~JobImage();
  JobImage(const JobImage&) = delete;
  JobImage& operator=(const JobImage&) = delete;

  ImageKeeper& keeper() { return writer_; }
  ImageWriter& writer() { return writer_; }
  ImageFile& file() { return file_; }
  // By which its process goes on with it.
  const JobToken& token() const { return token_; }

 private:
  JobImage(DescriptorStore& store, std::string key, ImageFile file,
           const JobToken& accepted);

  DescriptorStore& store_;
  const std::vector<std::string> names_;  // in the store
  ImageFile file_;
  ImageWriter writer_;
  const JobToken token_;
};

}  // namespace terrace
