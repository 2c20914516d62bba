#include "daemon/client/loop_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr char kName[] = "the daemon's page of stopped loops";

}  // namespace

absl::StatusOr<LoopView> LoopView::Map(const OwnDescriptor& file) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat found = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  const bool is_whole = fstat(file.get(), &found) == 0 &&
                        found.st_size == LoopPage::kBytes && seals >= 0 &&
                        (seals & kNeeded) == kNeeded;
  if (!is_whole) {
    return absl::InvalidArgumentError(
        absl::StrCat(kName, " has ", found.st_size, " bytes in place of ",
                     LoopPage::kBytes, ", or its size may change"));
  }
  void* const mapped =
      mmap(nullptr, LoopPage::kBytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoError(kName, "cannot map it", errno);
  LoopView view(static_cast<const LoopPage*>(mapped));
  if (madvise(mapped, LoopPage::kBytes, MADV_DONTFORK) != 0) {
    return ErrnoError(kName, "cannot be kept from children", errno);
  }
  const uint64_t magic = view.page_->magic;
  const uint64_t version = view.page_->version;
  if (magic == LoopPage::kMagic && version == LoopPage::kVersion) return view;
  return absl::InvalidArgumentError(
      absl::StrCat(kName, " is of the kind ", magic, ", version ", version));
}

LoopView::~LoopView() {
  // A child may have something else at that address.
  if (page_ == nullptr || !process_.IsCurrent()) return;
  munmap(const_cast<LoopPage*>(page_), LoopPage::kBytes);
}

}  // namespace terrace
