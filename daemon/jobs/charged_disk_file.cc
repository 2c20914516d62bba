#include "daemon/jobs/charged_disk_file.h"

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "daemon/jobs/media/growth_charge.h"

namespace terrace {
namespace {

class ChargedDiskFile final : public DiskFile {
 public:
  ChargedDiskFile(std::unique_ptr<DiskFile> file,
                  std::unique_ptr<Charge> charge)
      : charge_(std::move(charge), file->capacity_bytes()),
        file_(std::move(file)) {}

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return file_->Allocate(size_bytes);
  }
  void Free(Extent extent) override { file_->Free(extent); }
  bool TakeAt(const Extent& range) override { return file_->TakeAt(range); }
  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    return file_->GrowthFor(size_bytes);
  }

  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    const absl::StatusOr<Growth> asked = charge_.Take(growth);
    if (asked.ok()) return charge_.Keep(*asked, file_->Grow(*asked));
    const std::string& name = info().file;
    return WithIoFault(
        Reworded(asked.status(),
                 absl::StrCat(name, ": ",
                              absl::string_view(asked.status().message()),
                              " (EDQUOT)")),
        {EDQUOT, name});
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
    if (removed.ok()) charge_.GiveAll();
    return removed;
  }

 private:
  // The file goes first, and its bytes with it.
  GrowthCharge charge_;
  const std::unique_ptr<DiskFile> file_;
};

}  // namespace

std::unique_ptr<DiskFile> MakeChargedDiskFile(std::unique_ptr<DiskFile> file,
                                              std::unique_ptr<Charge> charge) {
  return std::make_unique<ChargedDiskFile>(std::move(file), std::move(charge));
}

}  // namespace terrace
