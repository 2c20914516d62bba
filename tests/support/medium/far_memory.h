// A mapped tier for tests: plain bytes behind faults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/vector_medium.h"

namespace terrace {

struct FarMemory {
  FarMemory(std::string name, int64_t size_bytes)
      : bytes(std::move(name), size_bytes) {}

  VectorMedium bytes;
  FaultMedium faults{bytes};
};

// Its faults, which keep all of it.
inline std::shared_ptr<Medium> MediumOf(std::shared_ptr<FarMemory> memory) {
  FaultMedium* const medium = &memory->faults;
  return std::shared_ptr<Medium>(std::move(memory), medium);
}

}  // namespace terrace
