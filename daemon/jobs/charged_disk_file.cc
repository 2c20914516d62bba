#include "daemon/jobs/charged_disk_file.h"

#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

class ChargedDiskFile final : public DiskFile {
 public:
  ChargedDiskFile(std::unique_ptr<DiskFile> file,
                  std::unique_ptr<Charge> charge)
      : file_(std::move(file)),
        charge_(std::move(charge)),
        charged_(file_->capacity_bytes()) {}
  // The file goes first, and its bytes with it.
  ~ChargedDiskFile() override {
    file_.reset();
    GiveAll();
  }

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return file_->Allocate(size_bytes);
  }
  void Free(Extent extent) override { file_->Free(extent); }
  bool TakeAt(const Extent& range) override { return file_->TakeAt(range); }
  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    return file_->GrowthFor(size_bytes);
  }

  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    Growth asked = growth;
    absl::Status charged = charge_->Take(asked.bytes);
    if (!charged.ok() && asked.least_bytes < asked.bytes) {
      asked.bytes = asked.least_bytes;
      charged = charge_->Take(asked.bytes);
    }
    if (!charged.ok()) {
      charge_->NoteRefused(charged);
      const std::string& name = info().file;
      return WithIoFault(
          Reworded(charged, absl::StrCat(name, ": ",
                                         absl::string_view(charged.message()),
                                         " (EDQUOT)")),
          {EDQUOT, name});
    }
    absl::StatusOr<int64_t> gained = file_->Grow(asked);
    const int64_t kept = gained.ok() ? *gained : 0;
    if (kept < asked.bytes) charge_->Give(asked.bytes - kept);
    charged_ += kept;
    return gained;
  }
  void AddSpace(int64_t size_bytes) override { file_->AddSpace(size_bytes); }
  int64_t growth_progress() const override { return file_->growth_progress(); }

  bool reclaims() const override { return file_->reclaims(); }
  bool Reclaim() override { return file_->Reclaim(); }

  int fd() const override { return file_->fd(); }
  int64_t capacity_bytes() const override { return file_->capacity_bytes(); }
  int64_t used_bytes() const override { return file_->used_bytes(); }
  const DiskFileInfo& info() const override { return file_->info(); }
  std::optional<KeptFile> Keep() const override { return file_->Keep(); }

  absl::Status Remove() override {
    absl::Status removed = file_->Remove();
    if (removed.ok()) GiveAll();
    return removed;
  }

 private:
  void GiveAll() {
    const int64_t all = charged_.exchange(0);
    if (all > 0) charge_->Give(all);
  }

  std::unique_ptr<DiskFile> file_;
  const std::unique_ptr<Charge> charge_;
  std::atomic<int64_t> charged_;
};

}  // namespace

std::unique_ptr<DiskFile> MakeChargedDiskFile(std::unique_ptr<DiskFile> file,
                                              std::unique_ptr<Charge> charge) {
  return std::make_unique<ChargedDiskFile>(std::move(file), std::move(charge));
}

}  // namespace terrace
