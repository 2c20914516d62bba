#include "libtorch/accelerator/relief_port.h"

#include <exception>

#include "base/check.h"

namespace terrace {
namespace {

thread_local bool is_relieving = false;

bool Ask(ReliefSource& source) {
  if (source.IsCapturing() || source.IsUnderBudget()) return false;
  return source.DropClean() > 0;
}

}  // namespace

bool ReliefPort::Relieve() noexcept {
  if (source_.load() == nullptr || is_relieving) return false;
  is_relieving = true;
  calls_.fetch_add(1);
  bool has_freed = false;
  try {
    if (ReliefSource* const source = source_.load()) has_freed = Ask(*source);
  } catch (const std::exception&) {
    // No memory on the CPU: then there is none to give back here either.
  }
  if (calls_.fetch_sub(1) == 1) calls_.notify_all();
  is_relieving = false;
  return has_freed;
}

bool ReliefPort::Attach(ReliefSource* source) {
  ReliefSource* none = nullptr;
  return source_.compare_exchange_strong(none, source);
}

void ReliefPort::Detach() {
  TERRACE_CHECK(!is_relieving);
  source_.store(nullptr);
  for (int32_t calls = calls_.load(); calls != 0; calls = calls_.load()) {
    calls_.wait(calls);
  }
}

}  // namespace terrace
