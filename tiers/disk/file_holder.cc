#include "tiers/disk/file_holder.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tiers/system_error.h"

namespace terrace {
namespace {

class DirectoryHolder final : public FileHolder {
 public:
  DirectoryHolder(std::unique_ptr<JobDirectory> directory, OwnDescriptor state)
      : directory_(std::move(directory)), state_(std::move(state)) {}

  // The open file keeps its blocks until it is closed, so they are given back
  // here; a transfer still in flight then hits no other file's bytes. Last, as
  // it may have to wait for such a transfer.
  absl::Status Remove() override {
    if (!directory_->IsOwner()) return absl::OkStatus();
    absl::Status status = directory_->Remove();
    if (ftruncate(state_.get(), 0) != 0) {
      status.Update(ErrnoError(directory_->state_file(),
                               "cannot give back its space", errno));
    }
    return status;
  }

  bool reclaims() const override { return true; }
  bool Reclaim() override { return directory_->Reclaim(); }
  bool MakeRoom() override { return directory_->MakeRoom(); }
  std::optional<KeptFile> Keep() const override {
    KeptFile kept{.name = directory_->name(),
                  .lock = directory_->lock().Share()};
    if (!kept.lock.ok()) return std::nullopt;
    return kept;
  }

 private:
  const std::unique_ptr<JobDirectory> directory_;  // goes after the file
  const OwnDescriptor state_;
};

class GivenHolder final : public FileHolder {
 public:
  explicit GivenHolder(std::unique_ptr<GivenFile> given)
      : given_(std::move(given)) {}
  absl::Status Remove() override { return given_->Remove(); }
  void OnUse() override { given_->Keep(); }

 private:
  const std::unique_ptr<GivenFile> given_;
};

}  // namespace

std::unique_ptr<FileHolder> HoldDirectory(
    std::unique_ptr<JobDirectory> directory, OwnDescriptor state) {
  return std::make_unique<DirectoryHolder>(std::move(directory),
                                           std::move(state));
}

std::unique_ptr<FileHolder> HoldGiven(std::unique_ptr<GivenFile> given) {
  return std::make_unique<GivenHolder>(std::move(given));
}

}  // namespace terrace
