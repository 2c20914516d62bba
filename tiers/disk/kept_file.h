// A directory's file that another process has left, as it is found again: with
// the lock by which nobody else takes it. A value; it moves.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/process.h"

namespace terrace {

struct KeptFile {
  std::string name;    // of the job's directory within the path
  OwnDescriptor lock;  // the one that the directory is locked by
  bool direct_io = false;
  int64_t alignment = kBlockBytes;
  uint64_t seal_id = 0;
};

}  // namespace terrace
