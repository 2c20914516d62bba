#include "base/threads/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace terrace {
namespace {

// The kernel's sched_attr in its first version. Its own header has a
// sched_param that libc's has too.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // of a thread that shares: its slice
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

constexpr uint64_t kShortestNs = 100'000;

}  // namespace

void TakeShortSlices() {
  constexpr int kThisThread = 0;
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, kThisThread, &attributes, sizeof(attributes),
              0) != 0) {
    return;
  }
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kShortestNs;
  syscall(SYS_sched_setattr, kThisThread, &attributes, 0);
}

}  // namespace terrace
