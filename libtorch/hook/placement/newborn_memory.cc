#include "libtorch/hook/placement/newborn_memory.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/process.h"

namespace terrace {
namespace {

// The arena lives for ever, as its tensors may.
struct Newborns {
  const Process process;
  std::shared_ptr<PlacementMemory> memory;
};
std::atomic<const Newborns*> newborns = nullptr;

std::shared_ptr<PlacementMemory> MapNewborns() {
  const int64_t bytes =
      int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  absl::StatusOr<std::shared_ptr<PlacementMemory>> memory =
      PlacementMemory::Map(bytes);
  return memory.ok() ? *std::move(memory) : nullptr;
}

}  // namespace

PlacementMemory* NewbornMemory() {
  static const Newborns* const made = [] {
    auto* const first = new Newborns{{}, MapNewborns()};
    newborns.store(first, std::memory_order_release);
    return first;
  }();
  return made->process.IsCurrent() ? made->memory.get() : nullptr;
}

bool IsNewborn(const void* address) {
  const Newborns* const made = newborns.load(std::memory_order_acquire);
  return made != nullptr && made->memory != nullptr &&
         made->memory->Contains(address);
}

void EndNewborn(std::byte* address) {
  const Newborns& made = *newborns.load(std::memory_order_acquire);
  if (made.process.IsCurrent()) made.memory->Give(address);
}

}  // namespace terrace
