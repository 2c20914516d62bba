// Kernels and containers that refuse: each in a child of its own.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "aio/engine.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int kCannotRestrict = 77;

// False: not here, or not any more.
template <size_t kCount>
bool Install(sock_filter (&filter)[kCount]) {
  const sock_fprog program = {kCount, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// As container profiles do: the ring's system calls answer `error`.
bool RefuseRings(int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 425, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 427, 1, 0),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return Install(filter);
}

// As a full process table does.
bool RefuseThreads() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return Install(filter);
}

// One block written and read back by this engine.
bool MovesABlock(IoEngine& engine) {
  TemporaryFile file(kBlock);
  absl::StatusOr<int> added = engine.AddFile(file.fd());
  if (!added.ok()) return false;
  AlignedBuffer buffer(2 * kBlock);
  buffer.FillRandom(3);
  for (const IoDirection direction :
       {IoDirection::kWrite, IoDirection::kRead}) {
    const int64_t at = direction == IoDirection::kRead ? kBlock : 0;
    const IoRequest request{*added, direction, buffer.data() + at,
                            0,      kBlock,    1};
    if (engine.Submit(absl::MakeConstSpan(&request, 1)) != 1) return false;
    IoResult result;
    while (engine.Poll(absl::MakeSpan(&result, 1)) == 0) {
      engine.Wait(absl::InfiniteFuture());
    }
    if (result.result != kBlock) return false;
  }
  return buffer.Copy(0, kBlock) == buffer.Copy(kBlock, kBlock);
}

[[noreturn]] void Verdict(bool good, const std::string& why) {
  if (!good) std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(good ? 0 : 1);
}

[[noreturn]] void StepsDown(int error, const std::string& name) {
  if (!RefuseRings(error)) std::_Exit(kCannotRestrict);
  auto engine = MakeEngine(EngineKind::kAuto);
  if (!engine.ok()) Verdict(false, std::string(engine.status().message()));
  const EngineInfo info = (*engine)->info();
  if (info.name != "threads" || info.reason.find(name) == std::string::npos) {
    Verdict(false, info.name + ": " + info.reason);
  }
  if (!MovesABlock(**engine)) Verdict(false, "no block moved");
  const auto named = MakeEngine(EngineKind::kUring);
  Verdict(named.status().code() == absl::StatusCode::kUnavailable &&
              named.status().message().find(name) != absl::string_view::npos,
          named.status().ToString());
}

TEST(Restricted, AutoStepsDownWhereSeccompRefusesTheRing) {
  for (const auto& [error, name] :
       {std::pair(EPERM, "EPERM"), std::pair(ENOSYS, "ENOSYS"),
        std::pair(EACCES, "EACCES"), std::pair(ENOMEM, "ENOMEM")}) {
    const int code = ExitCodeInChild([&] { StepsDown(error, name); });
    if (code == kCannotRestrict) GTEST_SKIP() << "no seccomp filter here";
    EXPECT_EQ(code, 0) << name;
  }
}

TEST(Restricted, WithoutThreadsTheirEngineIsRefused) {
  const int code = ExitCodeInChild([] {
    if (!RefuseThreads()) std::_Exit(kCannotRestrict);
    const absl::Status refused = MakeEngine(EngineKind::kThreads).status();
    Verdict(absl::IsResourceExhausted(refused), refused.ToString());
  });
  if (code == kCannotRestrict) GTEST_SKIP() << "no seccomp filter here";
  EXPECT_EQ(code, 0);
}

absl::Duration ProcessTime() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// A ring that stops working: its owner must wait all the same.
[[noreturn]] void WaitsForARefusedRing() {
  auto engine = MakeEngine(EngineKind::kUring);
  if (!engine.ok() || !MovesABlock(**engine)) std::_Exit(kCannotRestrict);
  if (!RefuseRings(ENOMEM)) std::_Exit(kCannotRestrict);
  const absl::Time start = SystemClock().Now();
  const absl::Duration busy_before = ProcessTime();
  (*engine)->Wait(start + absl::Milliseconds(400));
  const absl::Duration busy = ProcessTime() - busy_before;
  if (SystemClock().Now() < start + absl::Milliseconds(400)) {
    Verdict(false, "it did not wait");
  }
  if (busy > absl::Milliseconds(200)) {
    Verdict(false, "busy for " + absl::FormatDuration(busy));
  }
  (*engine)->Wake();
  (*engine)->Wait(absl::InfiniteFuture());
  Verdict(true, "");
}

TEST(Restricted, AWaitForARingThatRefusesDoesNotSpinAndIsWoken) {
  const int code = ExitCodeInChild(WaitsForARefusedRing);
  if (code == kCannotRestrict) GTEST_SKIP() << "no ring, or no filter, here";
  EXPECT_EQ(code, 0);
}

[[noreturn]] void RegistersBeyondTheLimit() {
  if (!BecomeAUserWhoMayLock(64 << 10)) std::_Exit(kCannotRestrict);
  auto engine = MakeEngine(EngineKind::kUring);
  if (!engine.ok()) std::_Exit(kCannotRestrict);
  AlignedBuffer arena(16 << 20);
  (*engine)->RegisterArena({arena.data(), 16 << 20});
  const EngineInfo info = (*engine)->info();
  if (info.buffers_registered ||
      info.reason.find("ENOMEM") == std::string::npos) {
    Verdict(false, info.reason);
  }
  Verdict(MovesABlock(**engine), "no block moved");
}

TEST(Restricted, ARefusedRegistrationIsReportedAndSurvived) {
  const int code = ExitCodeInChild(RegistersBeyondTheLimit);
  if (code == kCannotRestrict) GTEST_SKIP() << "no ring, or no limit, here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace terrace
