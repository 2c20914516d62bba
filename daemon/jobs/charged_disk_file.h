// A job's file whose bytes are charged to a quota as it grows, and given back
// once they are the disk's again.
#pragma once

#include <memory>

#include "daemon/jobs/charge.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

// What is refused is EDQUOT, as where a budget ends: the runtime goes on to
// another disk then, or tells who asked. What the file has is charged already.
std::unique_ptr<DiskFile> MakeChargedDiskFile(std::unique_ptr<DiskFile> file,
                                              std::unique_ptr<Charge> charge);

}  // namespace terrace
