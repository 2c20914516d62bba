// The bytes of a mapped tier, and how they are copied: far memory by memcpy,
// persistent memory by stores that persist. A Copy transport calls it from the
// executor's threads, piece by piece; pieces under way at one time do not
// overlap.
//
// Thread-safe, but for Grow, of which one runs at a time, and Remove. Bytes of
// a medium that failed stay readable where they are whole: each piece has a
// Status of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "tiers/extent.h"
#include "tiers/growth/growth.h"

namespace terrace {

// How another process finds a medium again, once the one that had it has gone.
struct KeptMedium {
  std::string name;    // of the job's directory within the place; "": none
  OwnDescriptor file;  // the memory, or the lock by which nobody else takes it
  uint64_t seal_id = 0;
};

class Medium {
 public:
  virtual ~Medium() = default;

  // As errors name it: a node, a file, a device.
  virtual const std::string& name() const = 0;
  virtual int64_t size_bytes() const = 0;
  // Ranges that must not be handed out: bad blocks, known when their bytes
  // came. In order, without overlap.
  virtual std::vector<Extent> bad_ranges() const { return {}; }

  // What it may grow to, by Grow; size_bytes(): its size stays.
  virtual int64_t most_bytes() const { return size_bytes(); }
  // Adds bytes at its end, as many as it returns, while others are copied. May
  // block. ResourceExhausted: there are no such bytes, or a quota has no room
  // for them, and nothing has changed.
  virtual absl::StatusOr<int64_t> Grow(const Growth& growth) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name(), ": growth by ", growth.bytes,
                     " bytes: its size of ", size_bytes(), " bytes stays"));
  }

  // In the headers of what it holds, where it may be kept beyond the process;
  // 0: any number will do.
  virtual uint64_t seal_id() const { return 0; }
  // Nullopt: it goes with the process.
  virtual std::optional<KeptMedium> Keep() const { return std::nullopt; }

  // All of `to`, or an error. DataLoss: the medium lost these bytes, for good;
  // of anything else it may be tried again.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> to) = 0;
  // Returns once the bytes are as durable as the medium makes them.
  virtual absl::Status Write(int64_t offset,
                             absl::Span<const std::byte> from) = 0;

  // Gives back the file behind it, if it made one; nothing is copied from here
  // on. May block.
  virtual absl::Status Remove() { return absl::OkStatus(); }
};

}  // namespace terrace
