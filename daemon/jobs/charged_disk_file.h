// A job's file whose bytes are charged to a quota as it grows, and given back
// once they are the disk's again.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

// Of one file. Thread-safe.
class Charge {
 public:
  virtual ~Charge() = default;
  // ResourceExhausted: a quota has no room for so many more.
  virtual absl::Status Take(int64_t bytes) = 0;
  virtual void Give(int64_t bytes) = 0;
};

// What is refused is EDQUOT, as where a budget ends: the runtime goes on to
// another disk then, or tells who asked.
std::unique_ptr<DiskFile> MakeChargedDiskFile(std::unique_ptr<DiskFile> file,
                                              std::unique_ptr<Charge> charge);

}  // namespace terrace
