// The page by which a daemon tells this process which of the loops that serve
// it have stopped (daemon/watch/loop_page.h), mapped to be read. A forked child
// has no such mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/watch/loop_page.h"

namespace terrace {

class LoopView {
 public:
  // InvalidArgument: the file is no such page, or one that may change its size;
  // ResourceExhausted: there is no address for it.
  static absl::StatusOr<LoopView> Map(const OwnDescriptor& file);
  ~LoopView();
  LoopView(LoopView&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)) {}
  LoopView& operator=(LoopView&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }

  // One that is as it was before says nothing of now.
  uint64_t turns() const {
    return page_->turns.load(std::memory_order_acquire);
  }
  // For how long it has not turned; 0: it does.
  absl::Duration SilenceOf(size_t loop) const {
    return absl::Nanoseconds(
        page_->silences[loop].load(std::memory_order_relaxed));
  }

 private:
  explicit LoopView(const LoopPage* page) : page_(page) {}

  const Process process_;
  const LoopPage* page_;
};

}  // namespace terrace
