// The bytes of a mapped tier, and how they are copied: far memory by memcpy,
// persistent memory by stores that persist. A Copy transport calls it from the
// executor's threads, piece by piece; pieces under way at one time do not
// overlap.
//
// Thread-safe, but for Remove. Bytes of a medium that failed stay readable
// where they are whole: each piece has a Status of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tiers/extent.h"

namespace terrace {

class Medium {
 public:
  virtual ~Medium() = default;

  // As errors name it: a node, a file, a device.
  virtual const std::string& name() const = 0;
  virtual int64_t size_bytes() const = 0;
  // Ranges that must not be handed out: bad blocks, known at the start. In
  // order, without overlap.
  virtual std::vector<Extent> bad_ranges() const { return {}; }

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
