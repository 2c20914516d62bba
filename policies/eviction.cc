#include "policies/eviction.h"

#include "base/check.h"

namespace terrace {

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::kLru:
      return MakeLruPolicy();
    case EvictionKind::kNextUse:
      return MakeNextUsePolicy();
  }
  TERRACE_CHECK(false && "an eviction kind that does not exist");
  return nullptr;
}

}  // namespace terrace
