// A job's share of a tier's bytes, which a quota bounds. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace terrace {

class Charge {
 public:
  virtual ~Charge() = default;
  // ResourceExhausted: a quota has no room for so many more.
  virtual absl::Status Take(int64_t bytes) = 0;
  // Where all jobs together have too much, others may lend: it waits for that.
  virtual absl::Status Await(int64_t bytes) { return Take(bytes); }
  virtual void Give(int64_t bytes) = 0;
  // What Take refused is not asked for otherwise: an operator is to know.
  virtual void NoteRefused(const absl::Status& why) = 0;
};

}  // namespace terrace
