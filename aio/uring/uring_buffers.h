// The arena as a ring's registered buffers: a sparse table of slots of at most
// 1 GiB, the kernel's limit, filled one by one. What the limit on locked memory
// allows is registered; the rest moves without. One thread at a time.
//
// The arena begins at a huge page, and the small ones behind its last have a
// slot of their own: the kernel (6.12 and later) keeps a slot as huge pages
// only if it has no others, and cuts transfers of one with a small page into
// requests of as many pages as the device has segments (254: 1016 KiB), which
// cost a third more processor time to make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "aio/engine.h"

struct io_uring;

namespace terrace {

class UringBuffers {
 public:
  // Once. Kernels before 5.19 know no sparse table: there it is all or
  // nothing.
  void Register(io_uring* ring, absl::Span<std::byte> arena);

  // Nothing of that part of the arena is registered any more. False: what names
  // its slots waits to be submitted.
  bool Unregister(io_uring* ring, absl::Span<std::byte> part);

  // The registered slot that the whole buffer lies in, or -1.
  int SlotOf(const IoRequest& request) const;

  int64_t registered_bytes() const { return registered_bytes_; }
  bool has_all() const {
    return registered_bytes_ > 0 &&
           registered_bytes_ == static_cast<int64_t>(arena_.size());
  }
  int error() const { return error_; }  // that ended it early; 0: none

 private:
  struct Slots {
    size_t first = 0;
    size_t end = 0;
  };

  // Of the arena, by a place there.
  size_t SlotAt(int64_t place) const;
  int64_t BytesOf(size_t slot) const;
  // Those that have any of the part.
  Slots SlotsOf(absl::Span<std::byte> part) const;
  bool HasSome(const Slots& slots) const;

  absl::Span<std::byte> arena_;
  int64_t huge_bytes_ = 0;        // of the arena, from its start
  std::vector<bool> registered_;  // by slot
  int64_t registered_bytes_ = 0;
  int error_ = 0;
};

}  // namespace terrace
