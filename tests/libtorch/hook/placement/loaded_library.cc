// A library that a program opens while it runs, with the allocator in it.
#include <ATen/ops/full.h>

#include "terrace/torch/placement.h"

namespace {

terrace::PlacementArena& Arena() {
  static auto& arena =
      *new terrace::PlacementArena(*terrace::PlacementArena::Create(1 << 20));
  return arena;
}

}  // namespace

extern "C" {

bool InstallPlacement() { return terrace::PlacementAllocator::Install().ok(); }
bool UninstallPlacement() {
  return terrace::PlacementAllocator::Uninstall().ok();
}

// In the library's arena, of a thousand floats.
void MakeInArena(float value, at::Tensor* made) {
  const terrace::PlacementScope scope(Arena());
  *made = at::full({1000}, value);
}

int64_t UsedInArena() { return Arena().used_bytes(); }

}  // extern "C"
