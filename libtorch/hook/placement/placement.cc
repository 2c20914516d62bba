#include "terrace/torch/placement.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "libtorch/hook/placement/made_by_libtorch.h"
#include "libtorch/hook/placement/newborn_memory.h"
#include "libtorch/hook/placement/placement_memory.h"
#include "libtorch/hook/placement/placing.h"

namespace terrace {
namespace {

constexpr c10::DeviceType kCpu = c10::DeviceType::CPU;
// This is the least priority that takes the place of LibTorch's own allocator.
// It stays in force, as LibTorch never lowers a priority again.
constexpr uint8_t kPriority = 1;

// Placed knows the arena of each tensor that is in one: LibTorch frees by
// address alone.
class Placed {
 public:
  void Add(void* address, std::shared_ptr<PlacementMemory> memory) {
    MutexLock lock(mutex_);
    memories_.emplace(address, std::move(memory));
  }
  // Returns false when the address is in no arena.
  bool End(void* address) {
    std::shared_ptr<PlacementMemory> memory;  // the arena may end with this
    {
      MutexLock lock(mutex_);
      const auto found = memories_.find(address);
      if (found == memories_.end()) return false;
      memory = std::move(found->second);
      memories_.erase(found);
    }
    memory->Give(static_cast<std::byte*>(address));
    return true;
  }

 private:
  Mutex mutex_;
  std::map<void*, std::shared_ptr<PlacementMemory>> memories_
      ABSL_GUARDED_BY(mutex_);
};

class Allocator final : public c10::Allocator {
 public:
  // The allocator lives for ever, as tensors may.
  static Allocator& Get() {
    static Allocator& allocator = *new Allocator();
    return allocator;
  }

  c10::DataPtr allocate(size_t size_bytes) override {
    if (Placing::MayBeOpen() && size_bytes > 0) {
      void* const made = Place(size_bytes);
      if (made != nullptr) return {made, made, &Delete, c10::Device(kCpu)};
    }
    return before()->allocate(size_bytes);
  }
  // One deleter serves all memory, by its address: raw_deallocate knows nothing
  // else.
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t size_bytes) const override {
    default_copy_data(to, from, size_bytes);
  }

  // Null until ours is first installed.
  c10::Allocator* before() const {
    return before_.load(std::memory_order_acquire);
  }
  void set_before(c10::Allocator* before) {
    before_.store(before, std::memory_order_release);
  }

 private:
  // Returns null where there is no room.
  void* Place(size_t size_bytes) {
    const Placing::Taken taken = Placing::Take(size_bytes);
    if (taken.arena != nullptr) {
      placed_.Add(taken.data, taken.arena->shared_from_this());
    }
    return taken.data;
  }
  static void Delete(void* address) {
    if (IsNewborn(address)) return EndNewborn(static_cast<std::byte*>(address));
    if (Get().placed_.End(address)) return;
    const c10::DeleterFnPtr before = Get().before()->raw_deleter();
    before(address);
  }

  Placed placed_;
  std::atomic<c10::Allocator*> before_ = nullptr;  // that ours replaced
};

// Two first scopes may begin at once: the second must not find the first's
// allocator as the one to hand on to.
Mutex installing;

}  // namespace

absl::Status PlacementAllocator::Install() {
  MutexLock lock(installing);
  if (installed()) return absl::OkStatus();
  Allocator& allocator = Allocator::Get();
  c10::Allocator* const before = c10::GetAllocator(kCpu);
  allocator.set_before(before);
  c10::SetAllocator(kCpu, &allocator, kPriority);  // says nothing if it refuses
  if (installed()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "LibTorch's CPU allocator has a higher priority than 1: another library "
      "put its own in place");
}

absl::Status PlacementAllocator::Uninstall() {
  MutexLock lock(installing);
  if (!installed()) {
    return absl::FailedPreconditionError(
        "LibTorch's CPU allocator is another one");
  }
  c10::SetAllocator(kCpu, Allocator::Get().before(), kPriority);
  return absl::OkStatus();
}

bool PlacementAllocator::installed() {
  return c10::GetAllocator(kCpu) == &Allocator::Get();
}

bool IsMadeByLibTorch(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  c10::Allocator& allocator = *c10::GetAllocator(kCpu);
  if (deleter == allocator.raw_deleter()) return true;
  // Ours hands on what it does not place, and may have been there before.
  const c10::Allocator* const before = Allocator::Get().before();
  return before != nullptr && (deleter == before->raw_deleter() ||
                               deleter == Allocator::Get().raw_deleter());
}

absl::StatusOr<PlacementArena> PlacementArena::Create(int64_t size_bytes) {
  absl::StatusOr<std::shared_ptr<PlacementMemory>> memory =
      PlacementMemory::Map(size_bytes);
  if (!memory.ok()) return memory.status();
  return PlacementArena(*std::move(memory));
}

PlacementArena::PlacementArena(std::shared_ptr<PlacementMemory> memory)
    : memory_(std::move(memory)) {}
PlacementArena::~PlacementArena() = default;
PlacementArena::PlacementArena(PlacementArena&&) noexcept = default;
PlacementArena& PlacementArena::operator=(PlacementArena&&) noexcept = default;

int64_t PlacementArena::size_bytes() const { return memory_->size_bytes(); }
int64_t PlacementArena::used_bytes() const { return memory_->used_bytes(); }
bool PlacementArena::Contains(const void* address) const {
  return memory_->Contains(address);
}

PlacementScope::PlacementScope() = default;
PlacementScope::PlacementScope(const PlacementArena& arena)
    : scope_(Placing::Begin(arena.memory_, nullptr)) {}
PlacementScope::PlacementScope(std::shared_ptr<Placing> scope)
    : scope_(std::move(scope)) {}
PlacementScope::~PlacementScope() { End(); }
PlacementScope::PlacementScope(PlacementScope&& other) noexcept = default;
PlacementScope& PlacementScope::operator=(PlacementScope&& other) noexcept {
  if (this == &other) return *this;
  End();
  scope_ = std::move(other.scope_);
  return *this;
}

void PlacementScope::End() {
  if (scope_ == nullptr) return;
  std::exchange(scope_, nullptr)->End();
}

}  // namespace terrace
