#include "aio/make_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

absl::StatusOr<std::unique_ptr<IoEngine>> Threads(const std::string& reason) {
  std::unique_ptr<IoEngine> engine = MakeThreadEngine(reason);
  if (engine != nullptr) return engine;
  return absl::ResourceExhaustedError(
      absl::StrCat("no thread for I/O can be started, ", reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeEngine(EngineKind kind) {
  if (kind == EngineKind::kThreads) return Threads("as asked");
  absl::StatusOr<std::unique_ptr<IoEngine>> ring = MakeUringEngine();
  if (ring.ok() || kind == EngineKind::kUring) return ring;
  TERRACE_CHECK(kind == EngineKind::kAuto);
  return Threads(absl::StrCat("instead of io_uring: ",
                              std::string(ring.status().message())));
}

}  // namespace terrace
