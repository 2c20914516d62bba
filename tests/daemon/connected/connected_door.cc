#include "tests/daemon/connected/connected_door.h"

#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/jobs/job_memory.h"
#include "daemon/jobs/job_session.h"
#include "daemon/wire/packet_listener.h"
#include "daemon/wire/poll_timeout.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

// Ends a session's connection once the session has ended, as a daemon's table
// of them does.
class Reaper {
 public:
  ~Reaper() {
    {
      MutexLock lock(mutex_);
      if (!has_ended_) session_->End();
    }
    thread_.join();
  }
  void Begin(std::unique_ptr<JobSession> session) {
    session_ = session.get();
    thread_ = std::thread([this, owned = std::move(session)]() mutable {
      {
        MutexLock lock(mutex_);
        while (!has_ended_) ended_.Wait(mutex_);
      }
      owned.reset();
    });
  }
  void Tell() {
    MutexLock lock(mutex_);
    has_ended_ = true;
    ended_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar ended_;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  JobSession* session_ = nullptr;
  std::thread thread_;
};

// Counts what a job takes beside its budget.
class CountedCharge final : public Charge {
 public:
  explicit CountedCharge(std::shared_ptr<std::atomic<int64_t>> taken)
      : taken_(std::move(taken)) {}
  absl::Status Take(int64_t bytes) override {
    *taken_ += bytes;
    return absl::OkStatus();
  }
  void Give(int64_t bytes) override { *taken_ -= bytes; }
  void NoteRefused(const absl::Status& /*why*/) override {}

 private:
  const std::shared_ptr<std::atomic<int64_t>> taken_;
};

// Of the runtime that comes next.
struct NextMemory {
  std::shared_ptr<std::atomic<int64_t>> taken;
  std::shared_ptr<JobMemory> memory;
};
NextMemory next;

std::shared_ptr<SpillSource> MakeMemory(HostArena& arena) {
  next.taken = std::make_shared<std::atomic<int64_t>>(0);
  next.memory = std::make_shared<JobMemory>(
      arena, std::make_unique<CountedCharge>(next.taken));
  return next.memory;
}

const bool is_set = (runtime_door = &ConnectTo, spill_door = &MakeMemory, true);

PacketSocket AcceptOne(PacketListener& listener) {
  while (true) {
    pollfd wait = {listener.descriptor(), POLLIN, 0};
    poll(&wait, 1, /*timeout=*/-1);
    auto accepted = listener.Accept();
    if (accepted.ok() && accepted->has_value()) return **std::move(accepted);
  }
}

// As a daemon does with who asks for memory; the runtime is there already.
std::shared_ptr<Reaper> BeginSession(PacketListener& listener,
                                     std::unique_ptr<LocalRuntime> runtime) {
  PacketSocket socket = AcceptOne(listener);
  const Peer peer = *socket.peer();
  const auto packet = socket.Await(SystemClock().Now() + absl::Seconds(60));
  const Envelope hello = *Decode(packet->bytes);
  EXPECT_TRUE(std::holds_alternative<Hello>(hello.body));
  auto holder = std::make_shared<JobRuntime>(
      JobRuntime{.memory = std::move(next.memory),
                 .runtime = std::move(runtime)});
  auto reaper = std::make_shared<Reaper>();
  JobSession::Parts parts{
      .socket = std::move(socket),
      .peer = peer,
      .sequence = hello.sequence,
      .make_runtime = [holder](RuntimeLoops& /*loops*/)
          -> absl::StatusOr<JobRuntime> { return std::move(*holder); },
      .loops = std::make_shared<LoopTable>(),
      .pages = std::make_shared<LoopPages>(),
      .boxes = std::make_shared<AnswerBoxes>([] {}),
      .on_end =
          [told = reaper.get(), taken = next.taken](JobSession::Ended end) {
            EXPECT_TRUE(absl::IsUnavailable(end.how) ||
                        absl::IsCancelled(end.how))
                << end.how;
            if (!end.transfers_have_memory) {
              EXPECT_EQ(taken->load(), end.charged_bytes);
            }
            told->Tell();
          }};
  reaper->Begin(*JobSession::Start(std::move(parts)));
  return reaper;
}

}  // namespace

ReachedRuntime ConnectTo(std::unique_ptr<LocalRuntime> runtime) {
  const TemporaryDirectory folder;
  ListenOptions at;
  at.path = folder.path() + "/socket";
  PacketListener listener = *PacketListener::Make(at);
  ReachedRuntime reached;
  std::shared_ptr<Reaper> session;
  std::thread daemon(
      [&] { session = BeginSession(listener, std::move(runtime)); });
  Options options;
  options.host_budget_bytes = 1;  // what the runtime has is decided already
  options.threads = 1;
  reached.runtime = *Runtime::Connect(at.path, options);
  daemon.join();
  reached.behind = std::move(session);
  listener.Stop();
  return reached;
}

}  // namespace terrace
