// A whole runtime where the kernel refuses some of io_uring's calls, at its
// start or later: each in a child, as a filter of seccomp's stays.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aio/make_engine.h"
#include "gtest/gtest.h"
#include "tests/aio/runtime/refused_calls.h"
#include "tests/aio/runtime/tensor_customer.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

constexpr int kUntouched = 42;
constexpr int kCannotRefuse = 77;
constexpr int kErrors[] = {EPERM, ENOSYS, EACCES, ENOMEM};
// A refusal is told long before a transfer would be late.
constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr absl::Duration kAtOnce = absl::Seconds(10);

// Operations of io_uring_register, as linux/io_uring.h has them.
constexpr int kRegisterFilesUpdate = 6;
constexpr int kRegisterEnableRings = 12;
constexpr int kRegisterFiles2 = 13;
constexpr int kRegisterBuffers2 = 15;
constexpr int kRegisterBuffersUpdate = 16;
constexpr int kRegisterMaxWorkers = 19;

struct NamedCall {
  const char* name;
  int number;
  int opcode = RefusedCall::kAnyOpcode;
  // ENOMEM is the limit on locked memory, which costs the registration alone.
  bool survives_enomem = false;
};
// All that an engine makes here.
constexpr NamedCall kCalls[] = {
    {"setup", __NR_io_uring_setup},
    {"enter", __NR_io_uring_enter},
    {"register", __NR_io_uring_register},
    {"register files", __NR_io_uring_register, kRegisterFiles2},
    {"update files", __NR_io_uring_register, kRegisterFilesUpdate},
    {"limit workers", __NR_io_uring_register, kRegisterMaxWorkers},
    {"register buffers", __NR_io_uring_register, kRegisterBuffers2, true},
    {"update buffers", __NR_io_uring_register, kRegisterBuffersUpdate, true},
    {"enable", __NR_io_uring_register, kRegisterEnableRings},
};

std::string Scratch(bool is_direct) {
  return is_direct ? testing::TempDir() : "/dev/shm";
}

Options OptionsOf(const std::string& directory, EngineKind engine) {
  Options options;
  options.host_budget_bytes = 3 << 20;  // a window of two, and nothing beside
  options.paths = {directory};
  options.engine = engine;
  options.threads = 1;
  options.huge_pages = HugePages::kOff;
  options.io_timeout = kTimeout;
  return options;
}

// Empty: it was moved to the disk and back.
std::string Move(TensorCustomer& customer, uint8_t first) {
  for (int i = 0; i < 6; ++i) {
    const absl::Status filled =
        customer.Fill(i, static_cast<uint8_t>(first + i));
    if (!filled.ok()) return absl::StrCat("fill ", i, ": ", filled.ToString());
  }
  for (int i = 0; i < 6; ++i) {
    const absl::Status checked = customer.Check(i);
    if (!checked.ok())
      return absl::StrCat("check ", i, ": ", checked.ToString());
  }
  return "";
}

// Runs in a child what answers with an exit code or a complaint.
int CodeOf(const std::function<std::string(const std::string&)>& run,
           const std::string& scratch = testing::TempDir()) {
  std::string folder = scratch + "/terrace-refused-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return kCannotRefuse;
  const int code = ExitCodeInChild([&] {
    alarm(100);
    const std::string complaint = run(folder);
    if (complaint == "untouched") _exit(kUntouched);
    if (complaint == "skip") _exit(kCannotRefuse);
    if (!complaint.empty()) std::fprintf(stderr, "%s\n", complaint.c_str());
    _exit(complaint.empty() ? 0 : 1);
  });
  std::filesystem::remove_all(folder);
  return code;
}

std::string StartsRefused(const std::string& folder, const NamedCall& call,
                          int error) {
  if (!RefuseCall({call.number, call.opcode, error})) return "skip";
  auto opened = TensorCustomer::Open(OptionsOf(folder, EngineKind::kAuto));
  if (!opened.ok()) return opened.status().ToString();
  TensorCustomer& customer = **opened;
  std::string wrong = Move(customer, 1);
  const Stats stats = customer.runtime().GetStats();
  const bool goes_on = error == ENOMEM && call.survives_enomem;
  const bool is_told =
      absl::StrContains(stats.engine_reason, strerrorname_np(error)) ||
      (goes_on && stats.host.buffers_registered);  // in the kernel's older way
  if (stats.engine != (goes_on ? "io_uring" : "threads") || !is_told) {
    absl::StrAppend(&wrong, stats.engine, ": ", stats.engine_reason);
  }
  const absl::Status closed = customer.Close(kAtOnce);
  if (!closed.ok()) absl::StrAppend(&wrong, "; ", closed.ToString());
  const auto named =
      TensorCustomer::Open(OptionsOf(folder, EngineKind::kUring)).status();
  if (!goes_on &&
      (!absl::IsUnavailable(named) ||
       !absl::StrContains(named.message(), strerrorname_np(error)) ||
       !absl::StrContains(named.message(), "io_uring_"))) {
    absl::StrAppend(&wrong, "; by its name: ", named.ToString());
  }
  return wrong;
}

class RefusedRing : public testing::Test {
 protected:
  void SetUp() override {
    const int code = CodeOf([](const std::string&) -> std::string {
      const auto ring = MakeUringEngine();
      return ring.ok() && RefuseCall({__NR_io_uring_setup, -1, EPERM}) ? ""
                                                                       : "skip";
    });
    if (code != 0) GTEST_SKIP() << "no io_uring, or no seccomp filter, here";
  }
};

TEST_F(RefusedRing, AtItsStartAnyCallsRefusalIsToldAndThreadsDoTheWork) {
  for (const NamedCall& call : kCalls) {
    for (const int error : kErrors) {
      EXPECT_EQ(CodeOf([&](const std::string& folder) {
                  return StartsRefused(folder, call, error);
                }),
                0)
          << call.name << ": " << strerrorname_np(error);
    }
  }
}

// Nothing, or an error that says what was refused, soon.
std::string FailsAtOnce(const absl::Status& status, absl::Duration took,
                        const std::string& folder, int error) {
  if (absl::IsUnavailable(status) &&
      absl::StrContains(status.message(), "io_uring_") &&
      absl::StrContains(status.message(), strerrorname_np(error)) &&
      absl::StrContains(status.message(), folder) && took < kAtOnce) {
    return "";
  }
  return absl::StrCat(status.ToString(), " after ", absl::FormatDuration(took));
}

// Until something fails, or so many rounds are over.
absl::Status MoveOn(TensorCustomer& customer, int rounds) {
  absl::Status status;
  for (int round = 0; round < rounds && status.ok(); ++round) {
    for (int i = 0; i < 6 && status.ok(); ++i) {
      status = customer.Fill(i, static_cast<uint8_t>(6 * round + i));
    }
    for (int i = 0; i < 6 && status.ok(); ++i) status = customer.Check(i);
  }
  return status;
}

std::string IsRefusedLater(const std::string& folder, const NamedCall& call,
                           int error) {
  auto opened = TensorCustomer::Open(OptionsOf(folder, EngineKind::kUring));
  if (!opened.ok()) return "skip";
  TensorCustomer& customer = **opened;
  std::string wrong = Move(customer, 1);
  if (!wrong.empty()) return wrong;
  if (!RefuseCall({call.number, call.opcode, error})) return "skip";
  const absl::Time start = absl::Now();
  const absl::Status status = MoveOn(customer, 3);
  absl::Duration took = absl::Now() - start;
  if (call.number == __NR_io_uring_enter) {
    wrong = FailsAtOnce(status, took, folder, error);
    const Stats stats = customer.runtime().GetStats();
    if (!absl::StrContains(stats.engine_reason, strerrorname_np(error))) {
      absl::StrAppend(&wrong, " told as ", stats.engine_reason);
    }
  } else if (!status.ok()) {
    wrong = status.ToString();  // it needs no other call any more
  }
  const absl::Time closing = absl::Now();
  const absl::Status closed = customer.Close(absl::Seconds(60));
  took = absl::Now() - closing;
  if (took > kAtOnce || customer.runtime().GetStats().host.leaked_bytes != 0) {
    absl::StrAppend(&wrong, "; closed in ", absl::FormatDuration(took), ": ",
                    closed.ToString());
  }
  return wrong;
}

TEST_F(RefusedRing, LaterARefusalIsAnErrorThatNamesTheCallAtOnce) {
  for (const NamedCall& call : {kCalls[0], kCalls[1], kCalls[2]}) {
    for (const int error : kErrors) {
      for (const bool is_direct : {true, false}) {
        EXPECT_EQ(CodeOf(
                      [&](const std::string& folder) {
                        return IsRefusedLater(folder, call, error);
                      },
                      Scratch(is_direct)),
                  0)
            << call.name << ": " << strerrorname_np(error);
      }
    }
  }
}

// Kernels before 5.19 make no table of files in the newer way.
TEST_F(RefusedRing, WithAnOlderTableOfFilesALaterRefusalIsToldAllTheSame) {
  EXPECT_EQ(
      CodeOf([](const std::string& folder) -> std::string {
        if (!RefuseCall({__NR_io_uring_register, kRegisterFiles2, EINVAL})) {
          return "skip";
        }
        return IsRefusedLater(folder, {"enter", __NR_io_uring_enter}, EPERM);
      }),
      0);
}

TEST_F(RefusedRing, WithFewerDescriptorsThanItsTableHasThreadsDoTheWork) {
  EXPECT_EQ(CodeOf([](const std::string& folder) -> std::string {
              const rlimit few = {100, 100};
              if (setrlimit(RLIMIT_NOFILE, &few) != 0) return "skip";
              auto opened =
                  TensorCustomer::Open(OptionsOf(folder, EngineKind::kAuto));
              if (!opened.ok()) return opened.status().ToString();
              const std::string wrong = Move(**opened, 1);
              const Stats stats = (*opened)->runtime().GetStats();
              if (stats.engine == "threads" &&
                  absl::StrContains(stats.engine_reason, "EMFILE")) {
                return wrong;
              }
              return absl::StrCat(wrong, stats.engine, stats.engine_reason);
            }),
            0);
}

std::string IsRefusedFrom(const std::string& folder, int64_t first,
                          int64_t times) {
  CountedRefusal refusal(first, times, EPERM);
  if (!refusal.Begin()) return "skip";
  auto opened = TensorCustomer::Open(OptionsOf(folder, EngineKind::kAuto));
  if (!opened.ok()) return opened.status().ToString();
  TensorCustomer& customer = **opened;
  absl::Time start = absl::Now();
  const absl::Status status = MoveOn(customer, 1);
  std::string wrong;
  if (!status.ok()) {
    wrong = FailsAtOnce(status, absl::Now() - start, folder, EPERM);
  }
  const Stats stats = customer.runtime().GetStats();
  if (!status.ok() && stats.engine == "threads") {
    absl::StrAppend(&wrong, "; threads: ", status.ToString());
  }
  start = absl::Now();
  const absl::Status closed = customer.Close(absl::Seconds(60));
  const absl::Duration took = absl::Now() - start;
  if (took > kAtOnce) {
    absl::StrAppend(&wrong, "; closed in ", absl::FormatDuration(took), ": ",
                    closed.ToString());
  }
  if (!wrong.empty()) return absl::StrCat("call ", first, ": ", wrong);
  return refusal.refused() == 0 ? "untouched" : "";
}

TEST_F(RefusedRing, FromAnyCallOnOrOnceItIsOvercomeOrTold) {
  for (const int64_t times : {INT64_MAX / 2, int64_t{1}}) {
    int64_t first = 1;
    int failures = 0;
    for (int code = 0; code != kUntouched && failures < 3; ++first) {
      code = CodeOf([&](const std::string& folder) {
        return IsRefusedFrom(folder, first, times);
      });
      if (code == kCannotRefuse) GTEST_SKIP() << "no such filter here";
      EXPECT_TRUE(code == 0 || code == kUntouched) << "call " << first;
      failures += code != 0 && code != kUntouched ? 1 : 0;
      ASSERT_LT(first, 1000);
    }
    EXPECT_GT(first, 10);
  }
}

}  // namespace
}  // namespace terrace
