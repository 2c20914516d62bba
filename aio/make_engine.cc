#include "aio/make_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<IoEngine>> MakeEngine(EngineKind kind) {
  if (kind == EngineKind::kThreads) return MakeThreadEngine("as asked");
  absl::StatusOr<std::unique_ptr<IoEngine>> ring = MakeUringEngine();
  if (ring.ok() || kind == EngineKind::kUring) return ring;
  TERRACE_CHECK(kind == EngineKind::kAuto);
  return MakeThreadEngine(absl::StrCat("instead of io_uring: ",
                                       std::string(ring.status().message())));
}

}  // namespace terrace
