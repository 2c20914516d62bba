// The memory file of a job's image: whose it is, what it was given, and the
// entries (image_layout.h). It has memory for as many of them as were ever
// used at once.
//
// Another process may reopen it once the one that had it has gone. One thread
// at a time, but for what is said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "daemon/jobs/image/image_layout.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/wire/job_messages.h"
#include "tiers/disk/kept_file.h"
#include "tiers/medium.h"

namespace terrace {

// What does not change while the job's process lives.
struct ImageFacts {
  struct Disk {
    std::string place;  // of the configuration
    KeptFile file;      // without its lock
  };
  struct Mapped {
    std::string tier;  // its name, of the configuration
    int64_t most_bytes = 0;
    KeptMedium medium;  // without its descriptor
  };

  JobName job;
  int64_t process = 0;
  uint64_t start_time = 0;  // of that process, which makes it the same one
  Hello asked;
  int64_t spill_bytes = 0;  // addresses
  std::vector<Disk> disks;
  std::vector<Mapped> mapped;
};

class ImageFile {
 public:
  // ResourceExhausted: there is no descriptor or address for it;
  // InvalidArgument: facts that it has no room for, as a very long path.
  static absl::StatusOr<ImageFile> Make(const ImageFacts& facts);
  // InvalidArgument: no such image, or another version's; DataLoss: it had no
  // room for all that it was told.
  static absl::StatusOr<ImageFile> Reopen(OwnDescriptor file);
  ~ImageFile();
  ImageFile(ImageFile&& other) noexcept;
  ImageFile& operator=(ImageFile&&) = delete;

  const OwnDescriptor& file() const { return file_; }
  ImageFacts facts() const;

  // By which the process may go on from it, once: until it has said something
  // with the next one, with either of them.
  bool Accepts(const JobToken& token) const;
  // Another one, beside that which was accepted; of a new image, the first.
  JobToken MakeToken(const JobToken& accepted);
  void ForgetOldToken();

  // For any thread.
  void SetUsedBytes(int64_t bytes) { header().used_bytes = bytes; }
  int64_t used_bytes() const { return header().used_bytes; }
  // Its pins end here, though the process has them: from here on it may use any
  // of the memory.
  void NoteHeldPins() { header().held_pins = 1; }
  bool held_pins() const { return header().held_pins != 0; }

  ImageHeader& header() const {
    return *reinterpret_cast<ImageHeader*>(bytes_.data());
  }
  ImageEntry& entry(uint32_t index) const {
    return reinterpret_cast<ImageEntry*>(bytes_.data() +
                                         kImageHeaderBytes)[index];
  }

 private:
  ImageFile(OwnDescriptor file, absl::Span<std::byte> bytes)
      : file_(std::move(file)), bytes_(bytes) {}
  static absl::StatusOr<ImageFile> Map(OwnDescriptor file);

  OwnDescriptor file_;
  absl::Span<std::byte> bytes_;
};

}  // namespace terrace
