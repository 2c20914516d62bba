#include "terrace/recall_thread.h"

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

class StartedRecallThread final : public RecallThread {
 public:
  StartedRecallThread(ByteQueue& queue,
                      std::function<void(uint64_t token)> answer)
      : queue_(queue), answer_(std::move(answer)) {
    thread_ = StartThread("terrace-recall", [this] { Serve(); });
  }

  ~StartedRecallThread() override {
    if (!process_.IsCurrent()) {
      new std::thread(std::move(thread_));  // the parent's
      return;
    }
    queue_.WakeRecalls();
    thread_.join();
  }

 private:
  // Ends by the destructor's WakeRecalls, or with the runtime.
  void Serve() {
    while (true) {
      const absl::StatusOr<std::vector<uint64_t>> tokens =
          queue_.AwaitRecalls(absl::InfiniteFuture());
      if (!tokens.ok()) return;
      for (const uint64_t token : *tokens) {
        const ForkPause pause;
        answer_(token);
      }
    }
  }

  const Process process_;
  ByteQueue& queue_;
  const std::function<void(uint64_t token)> answer_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecallThread>> RecallThread::Start(
    ByteQueue& queue, std::function<void(uint64_t token)> answer) {
  try {
    return std::make_unique<StartedRecallThread>(queue, std::move(answer));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the thread for recalls: ", error.what()));
  }
}

}  // namespace terrace
