// A regular file or a block device that the user names as a path: given to
// Terrace, and one job's for as long as this lives.
//
// It begins with a mark of 4 KiB. Without the mark, a file that is not empty
// and a device whose first and last MiB are not zero hold data of others: they
// are refused, with the command that clears them, and never written. Of a
// device these two MiB, but for the mark, stay zero for ever, so that whatever
// is put there later (a partition table, a superblock) is seen.
//
// The job holds an exclusive flock on it, which dies with the job; what a
// killed one left behind the mark is space for the next, and of a file cut off
// at once, so that a smaller budget than that one's holds. A device is opened
// with O_EXCL as well: one that is mounted, or part of a RAID or a volume
// group, is refused. A forked child has neither lock nor claim, and changes
// nothing. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"
#include "tiers/disk/given_mark.h"
#include "tiers/disk/state_file.h"

namespace terrace {

class GivenFile {
 public:
  static constexpr int64_t kMarkBytes = kGivenMarkBytes;
  // Kept free at both ends of a device.
  static constexpr int64_t kDeviceMarginBytes = 1 << 20;

  // NotFound; InvalidArgument: neither file nor device, or it holds data of
  // others; FailedPrecondition: the device is in use; PermissionDenied;
  // Unavailable: another job has it; ResourceExhausted: the disk is full, or
  // the device too small.
  static absl::StatusOr<std::unique_ptr<GivenFile>> Open(
      const std::string& path);
  // Without a Keep what had no mark is as it was: a file empty, of a device the
  // first bytes zero.
  ~GivenFile();
  GivenFile(const GivenFile&) = delete;
  GivenFile& operator=(const GivenFile&) = delete;

  const StateFile& file() const { return file_; }  // its fd is this object's
  bool is_device() const { return is_device_; }
  // Of the mark that a job before left; -1: it says nothing of that.
  int64_t marked_unsafe_shutdowns() const { return unsafe_shutdowns_; }
  // Where extents begin, and where the space for them ends now: a file's grows
  // from there, a device's does not.
  int64_t begin_bytes() const {
    return is_device_ ? kDeviceMarginBytes : kMarkBytes;
  }
  int64_t end_bytes() const { return end_bytes_; }

  // Something is stored behind the mark from here on: it stays.
  void Keep() { is_kept_ = true; }

  // Gives a file's space back; the mark stays. A transfer that is still under
  // way then hits no other file's bytes.
  absl::Status Remove();

 private:
  explicit GivenFile(const std::string& path);
  absl::Status OpenAndLock();
  absl::Status ClaimDevice();
  absl::Status CheckDevice();
  absl::Status CheckFile();
  absl::Status Mark();
  void Unmark();
  absl::Status InUse() const;
  int fd() const { return is_device_ ? claim_.get() : lock_.get(); }
  std::string Name() const;
  absl::Status Failed(const std::string& what, int error) const;

  const std::string path_;  // as the user named it
  const Process process_;
  bool is_device_ = false;
  OwnDescriptor lock_;   // of a file the only one
  OwnDescriptor claim_;  // of a device
  int64_t end_bytes_ = 0;
  StateFile file_;
  int64_t unsafe_shutdowns_ = -1;
  bool was_marked_ = false;  // by a job before
  bool is_marked_ = false;
  bool is_kept_ = false;
};

}  // namespace terrace
