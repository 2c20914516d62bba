#include "daemon/jobs/runtime_loops.h"

#include <system_error>

#include "absl/strings/str_cat.h"
#include "runtime/background_thread.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<LocalRuntime>> RuntimeLoops::Start(
    LocalRuntimeParts parts) {
  mover_ =
      table_->Add({.kind = "mover", .process = process_, .session = session_});
  parts.heartbeat = mover_.shared_heartbeat();
  const auto watched = [this] {
    std::unique_ptr<Executor> thread = MakeBackgroundThread();
    const auto number = static_cast<int>(background_.size());
    background_.push_back(
        {table_->Add({"files", process_, number, session_}), thread.get()});
    return thread;
  };
  try {
    for (LocalPath& path : parts.paths) path.background = watched();
    for (LocalMapped& each : parts.mapped) each.background = watched();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a tier's thread: ", error.what()));
  }
  return LocalRuntime::Start(std::move(parts));
}

void RuntimeLoops::Ask(LocalRuntime& runtime, absl::Time now) {
  if (mover_.heartbeat().Ask(now)) runtime.mover().inbox()->Wake();
  for (const Background& each : background_) {
    // A thread that has not run the last task has no use for another.
    if (each.loop.heartbeat().SilenceAt(now) > absl::ZeroDuration()) continue;
    each.loop.heartbeat().Ask(now);
    each.thread->Run(
        [heartbeat = each.loop.shared_heartbeat()] { heartbeat->Beat(); });
  }
}

}  // namespace terrace
