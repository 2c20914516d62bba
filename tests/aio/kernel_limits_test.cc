// What the kernel sets bounds to: the size of a disk and of a file, the rate of
// a device; what is closed or pulled out. On the engines of production.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "aio/io_paths.h"
#include "aio/uring_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/aio/throttle.h"
#include "tests/support/fault_engine.h"
#include "tests/support/loop_device.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int kSkipped = 77;

absl::StatusOr<std::unique_ptr<IoEngine>> EngineOf(const std::string& kind) {
  if (kind == "threads") return MakeEngine(EngineKind::kThreads);
  return MakeRingOfKind(kind);
}

// Whole transfers one after the other on one file.
class OneFile {
 public:
  OneFile(std::unique_ptr<IoEngine> engine, const std::string& name, int fd)
      : io_(std::move(engine), SystemClock()) {
    path_ = *io_.AddPath(name, fd, {});
  }
  absl::Status Move(IoDirection direction, std::byte* data, int64_t offset,
                    int64_t size_bytes) {
    io_.Enqueue(path_, {direction, IoClass::kDemand, data, offset, size_bytes,
                        1, absl::Seconds(60)});
    std::vector<Completion> ended;
    io_.Poll(&ended);
    while (io_.pending() > 0) {
      io_.Wait(io_.NextEvent());
      io_.Poll(&ended);
    }
    return ended.size() == 1 ? ended[0].status
                             : absl::InternalError("not one end");
  }

 private:
  IoPaths io_;
  int path_ = 0;
};

class KernelLimits : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engines, KernelLimits,
                         testing::Values("io_uring", "io_uring_bare",
                                         "threads"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

// A sparse file of 4 MiB on a disk of less: what fits is written, what does
// not is told, and what was written is there.
void FillDisk(const std::string& kind, const std::string& directory) {
  auto engine = EngineOf(kind);
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  const std::string name = directory + "/state";
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  fcntl(fd, F_SETFL, O_DIRECT);  // where it works
  ASSERT_EQ(ftruncate(fd, 64 * kMiB), 0);
  AlignedBuffer buffer(kMiB);
  int64_t written = 0;
  {
    OneFile file(*std::move(engine), name, fd);
    absl::Status full;
    for (; written < 64 && full.ok(); ++written) {
      buffer.FillRandom(static_cast<uint64_t>(written));
      full =
          file.Move(IoDirection::kWrite, buffer.data(), written * kMiB, kMiB);
    }
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_THAT(std::string(full.message()),
                AllOf(HasSubstr(name), HasSubstr("ENOSPC")));
    --written;
    ASSERT_GT(written, 0);
    AlignedBuffer read(kMiB);
    for (int64_t i = 0; i < written; ++i) {
      buffer.FillRandom(static_cast<uint64_t>(i));
      ASSERT_TRUE(
          file.Move(IoDirection::kRead, read.data(), i * kMiB, kMiB).ok());
      EXPECT_EQ(read.Copy(0, kMiB), buffer.Copy(0, kMiB)) << "MiB " << i;
    }
  }
  close(fd);
}

TEST_P(KernelLimits, AFullMemoryFileSystemIsToldAndLosesNothing) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=3m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  FillDisk(GetParam(), directory.path());
}

TEST_P(KernelLimits, AFullDiskIsToldAndLosesNothing) {
  if (std::system("command -v mkfs.ext4 >/dev/null") != 0) {
    GTEST_SKIP() << "no mkfs.ext4";
  }
  LoopDevice device(16 * kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  ASSERT_EQ(std::system(("mkfs.ext4 -q " + device.path()).c_str()), 0);
  TemporaryDirectory directory;
  const std::string place = directory.MakeDirectory("disk");
  if (mount(device.path().c_str(), place.c_str(), "ext4", 0, "") != 0) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  FillDisk(GetParam(), place);
  EXPECT_EQ(umount2(place.c_str(), MNT_DETACH), 0);
}

int InChild(absl::FunctionRef<bool()> body) {
  return ExitCodeInChild([&] { std::_Exit(body() ? 0 : 1); });
}

TEST_P(KernelLimits, ALimitOnTheFilesSizeIsTold) {
  TemporaryFile file(0);
  const int code = InChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {2 * kMiB, 2 * kMiB};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(kSkipped);
    auto engine = EngineOf(GetParam());
    if (!engine.ok()) std::_Exit(kSkipped);
    OneFile one(*std::move(engine), file.name(), file.fd());
    AlignedBuffer buffer(4 * kMiB);
    if (!one.Move(IoDirection::kWrite, buffer.data(), 0, kMiB).ok()) {
      return false;
    }
    const absl::Status refused =
        one.Move(IoDirection::kWrite, buffer.data(), kMiB, 4 * kMiB);
    return absl::IsResourceExhausted(refused) &&
           refused.ToString().find("EFBIG") != std::string::npos &&
           one.Move(IoDirection::kRead, buffer.data(), 0, kMiB).ok();
  });
  if (code == kSkipped) GTEST_SKIP() << "no limit, or no ring, here";
  EXPECT_EQ(code, 0);
}

// A ring has the file itself, wherever the kernel lets it; threads have its
// number alone.
TEST_P(KernelLimits, AClosedDescriptorDoesNotMatterToARingAndIsToldElse) {
  auto engine = EngineOf(GetParam());
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  const IoEngine& ring = **engine;
  const bool has_table =
      std::string(GetParam()) != "threads" && ProbeUring().registers_files;
  TemporaryFile file(kMiB);
  AlignedBuffer buffer(2 * kMiB);
  buffer.FillRandom(5);
  ASSERT_EQ(pwrite(file.fd(), buffer.data(), kMiB, 0), kMiB);
  const int copy = fcntl(file.fd(), F_DUPFD_CLOEXEC, 0);
  OneFile one(*std::move(engine), file.name(), copy);
  close(copy);
  EXPECT_EQ(ring.info().reason.find(", files registered") != std::string::npos,
            has_table)
      << ring.info().reason;
  const absl::Status status =
      one.Move(IoDirection::kRead, buffer.data() + kMiB, 0, kMiB);
  EXPECT_EQ(status.ok(), has_table) << status;
  if (status.ok()) {
    EXPECT_EQ(buffer.Copy(0, kMiB), buffer.Copy(kMiB, kMiB));
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("EBADF"));
  }
}

// From a request in the middle on the device is not there any more; what it
// had in flight never ends well.
TEST_P(KernelLimits, ADeviceThatIsPulledOutEndsAllTransfersOnce) {
  auto engine = EngineOf(GetParam());
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  TemporaryFile file(16 * kMiB);
  AlignedBuffer buffer(16 * kMiB);
  auto plan = std::make_shared<FaultPlan>();
  IoPaths io(MakeFaultEngine(*std::move(engine), plan, SystemClock()),
             SystemClock());
  const int path = *io.AddPath(file.name(), file.fd(), {});
  // One is lost in the device, the next ones find no device.
  plan->FailCall(3, {FaultKind::kErrorAfter, ENODEV, absl::ZeroDuration()});
  plan->FailCall(4, {FaultKind::kError, ENODEV, absl::ZeroDuration()},
                 CallFilter::kAny, INT64_MAX / 2);
  for (uint64_t tag = 0; tag < 16; ++tag) {
    const int64_t at = static_cast<int64_t>(tag) * kMiB;
    io.Enqueue(path, {tag % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite,
                      IoClass::kDemand, buffer.data() + at, at, kMiB, tag});
  }
  std::vector<Completion> ended;
  const absl::Time limit = SystemClock().Now() + absl::Seconds(60);
  io.Poll(&ended);
  while (io.pending() > 0 && SystemClock().Now() < limit) {
    io.Wait(std::min(io.NextEvent(), limit));
    io.Poll(&ended);
  }
  ASSERT_EQ(ended.size(), 16u);
  std::vector<int> ends(16);
  int good = 0;
  for (const Completion& completion : ended) {
    ++ends[completion.tag];
    good += completion.status.ok() ? 1 : 0;
    if (completion.status.ok()) continue;
    EXPECT_TRUE(absl::IsUnavailable(completion.status)) << completion.status;
    EXPECT_THAT(std::string(completion.status.message()),
                AllOf(HasSubstr(file.name()), HasSubstr("ENODEV")));
  }
  EXPECT_EQ(ends, std::vector<int>(16, 1));
  EXPECT_EQ(good, 2);
  EXPECT_EQ(io.stats(path).in_flight_bytes, 0);
}

// The kernel's throttle is exact on average: going faster would mean that
// bytes were not moved. Slower says nothing on a busy machine.
TEST_P(KernelLimits, AThrottledDeviceIsNoFasterThanItsLimit) {
  constexpr int64_t kDeviceBytes = 32 * kMiB;
  constexpr int64_t kRate = 48 * kMiB;
  LoopDevice device(kDeviceBytes);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  AlignedBuffer content(kDeviceBytes);
  content.FillRandom(17);
  ASSERT_EQ(pwrite(device.fd(), content.data(), kDeviceBytes, 0), kDeviceBytes);
  ASSERT_EQ(fsync(device.fd()), 0);
  struct stat node = {};
  ASSERT_EQ(fstat(device.fd(), &node), 0);
  Throttle throttle(node.st_rdev, kRate);
  if (!throttle.ok()) GTEST_SKIP() << throttle.reason();
  const int code = InChild([&] {
    auto engine = EngineOf(GetParam());
    if (!engine.ok() || !throttle.Join()) std::_Exit(kSkipped);
    const int fd = open(device.path().c_str(), O_RDONLY | O_DIRECT);
    OneFile one(*std::move(engine), device.path(), fd);
    AlignedBuffer buffer(4 * kMiB);
    int64_t moved = 0;
    absl::Duration time;
    const absl::Time start = SystemClock().Now();
    for (int64_t at = 0; time < absl::Seconds(2);
         at = (at + buffer.size_bytes()) % kDeviceBytes) {
      buffer.Fill(0);
      const absl::Status status =
          one.Move(IoDirection::kRead, buffer.data(), at, buffer.size_bytes());
      if (!status.ok() || buffer.Copy(0, buffer.size_bytes()) !=
                              content.Copy(at, buffer.size_bytes())) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return false;
      }
      moved += buffer.size_bytes();
      time = SystemClock().Now() - start;
    }
    // A slice of the throttle, 0.1 s, may be spent in advance.
    const double most = kRate * (1.03 * absl::ToDoubleSeconds(time) + 0.1);
    std::fprintf(
        stderr, "%.3f of the limit\n",
        static_cast<double>(moved) / kRate / absl::ToDoubleSeconds(time));
    return static_cast<double>(moved) <= most;
  });
  if (code == kSkipped) GTEST_SKIP() << "no ring, or no member of the group";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace terrace
