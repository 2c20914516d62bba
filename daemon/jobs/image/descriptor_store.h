// Where descriptors are kept beyond the daemon's process, by names: its service
// manager hands them to the next one that it starts. Thread-safe; nothing
// blocks.
#pragma once

#include <string>

#include "base/process.h"

namespace terrace {

class DescriptorStore {
 public:
  virtual ~DescriptorStore() = default;
  // False: it is not kept.
  virtual bool Keep(const std::string& name, const OwnDescriptor& file) = 0;
  virtual void Drop(const std::string& name) = 0;
};

}  // namespace terrace
