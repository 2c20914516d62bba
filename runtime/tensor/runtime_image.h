// What goes on after the process that has a runtime ended without a word: where
// each tensor's newest contents are, who has it pinned, and which queues are
// open. From it another runtime, over the same memory and files, is what that
// one was (runtime/mover/restoration.h). What was under way, and groups that
// were not answered, are asked for anew.
//
// Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/request.h"
#include "terrace/tensor.h"
#include "tiers/extent.h"
#include "tiers/reservation.h"

namespace terrace {

struct CopyImage {
  TierId tier = kNoTier;  // kNoTier: there is none
  Extent extent;
  uint64_t generation = 0;  // of what is whole there; 0: nothing
};

struct TensorImage {
  TensorId id;
  TensorSpec spec;
  uint64_t generation = 0;  // of the newest contents; 0: never written
  CopyImage below;          // a place, perhaps an empty one
  CopyImage memory;         // in the first memory; nothing that arrives
  bool is_lost = false;
};

struct PinImage {
  uint64_t token = 0;
  TensorId tensor;
  int64_t queue = -1;
  Access access = Access::kRead;
  // What its process tells of it, at a queue of bytes: it was asked back, and
  // is used nevertheless.
  bool is_recalled = false;
  bool is_kept = false;
};

struct QueueImage {
  int64_t id = -1;
  // With slots: its window, all of it.
  Extent window;
  int slots = 0;
  // Of bytes: without slots.
  int64_t window_bytes = 0;
  // What its process tells of it.
  std::optional<int64_t> step;  // that is open
  int64_t hold_at_most = -1;    // -1: it was never told

  bool is_of_bytes() const { return slots == 0; }
  int64_t stride() const { return window.size_bytes / slots; }
};

struct RuntimeImage {
  std::vector<TensorImage> tensors;
  std::vector<QueueImage> queues;
  std::vector<PinImage> pins;
  std::vector<Extent> lent;  // of the first memory: ranges without pages
  // What was given never comes again.
  int64_t next_tensor = 0;
  int64_t next_queue = 0;
  uint64_t next_token = 1;  // without its client's bits
};

}  // namespace terrace
