// What a mover did, as one number.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "runtime/motion/transcript.h"

namespace terrace {

// FNV-1a, 64 bits, of whole words (Fowler, Noll, Vo: RFC 9923).
class Digest {
 public:
  void Add(uint64_t word) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ ((word >> (8 * i)) & 0xff)) * 0x100000001b3;
    }
  }
  void Add(const TranscriptLine& line) {
    Add(static_cast<uint64_t>(absl::ToUnixNanos(line.at)));
    Add(static_cast<uint64_t>(line.event));
    Add(static_cast<uint64_t>(line.code));
    Add(static_cast<uint64_t>(line.tensor));
    Add(static_cast<uint64_t>(line.from));
    Add(static_cast<uint64_t>(line.to));
    Add(static_cast<uint64_t>(line.io_class));
    Add(line.generation);
    Add(static_cast<uint64_t>(line.queue));
    Add(line.tag);
    Add(static_cast<uint64_t>(line.cause));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

inline uint64_t DigestOf(const Transcript& transcript) {
  Digest digest;
  for (const TranscriptLine& line : transcript) digest.Add(line);
  return digest.value();
}

}  // namespace terrace
