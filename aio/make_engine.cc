#include "aio/make_engine.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
namespace {

absl::StatusOr<std::unique_ptr<IoEngine>> Threads(const std::string& reason) {
  std::unique_ptr<IoEngine> engine = MakeThreadEngine(reason);
  if (engine != nullptr) return engine;
  return absl::ResourceExhaustedError(
      absl::StrCat("no thread for I/O can be started, ", reason));
}

}  // namespace

bool IsOnFuse(int fd) {
  struct statfs system;
  return fstatfs(fd, &system) == 0 && system.f_type == FUSE_SUPER_MAGIC;
}

absl::StatusOr<std::unique_ptr<IoEngine>> MakeEngine(
    EngineKind kind, absl::Span<const int> files) {
  if (kind == EngineKind::kThreads) return Threads("as asked");
  for (size_t i = 0; kind == EngineKind::kAuto && i < files.size(); ++i) {
    if (!IsOnFuse(files[i])) continue;
    return Threads(
        absl::StrCat("instead of io_uring: path ", i, " is on FUSE"));
  }
  absl::StatusOr<std::unique_ptr<IoEngine>> ring =
      MakeUringEngine(/*unknown_flags=*/0, static_cast<int>(files.size()));
  if (ring.ok() || kind == EngineKind::kUring) return ring;
  TERRACE_CHECK(kind == EngineKind::kAuto);
  return Threads(absl::StrCat("instead of io_uring: ",
                              std::string(ring.status().message())));
}

}  // namespace terrace
