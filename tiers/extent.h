// A range inside one tier.
#pragma once

#include <cstdint>

namespace terrace {

struct Extent {
  int64_t offset = 0;
  int64_t size_bytes = 0;
  int64_t end() const { return offset + size_bytes; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace terrace
