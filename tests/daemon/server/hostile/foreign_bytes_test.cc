// No process has a byte of another one's: what a job filled its memory and the
// disk with is nowhere in what comes after it.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "tests/daemon/server/hostile/hostile_job.h"
#include "tests/daemon/server/hostile/played_process.h"

namespace terrace {
namespace {

constexpr int64_t kMuch = 1 << 20;
constexpr int64_t kFilled = 3 * kMuch;
constexpr int64_t kGrown = kMuch;

// It divides a block, so that it is found wherever it begins.
constexpr absl::string_view kForeign = "bytes of another";
static_assert(4096 % kForeign.size() == 0);

void WriteForeign(absl::Span<std::byte> data) {
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(kForeign[i % kForeign.size()]);
  }
}

// Half of it is enough, wherever it was cut.
bool HasForeign(absl::string_view bytes) {
  constexpr size_t kHalf = kForeign.size() / 2;
  for (const size_t from : {size_t{0}, kHalf}) {
    const absl::string_view part = kForeign.substr(from, kHalf);
    if (memmem(bytes.data(), bytes.size(), part.data(), part.size())) {
      return true;
    }
  }
  return false;
}
bool HasForeign(absl::Span<const std::byte> bytes) {
  return HasForeign(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// A process's memory, with all that it may grow by.
class MappedMemory {
 public:
  explicit MappedMemory(const RawJob& job)
      : size_(static_cast<size_t>(job.file_bytes())) {
    void* const at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED,
                          job.memory().get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  ~MappedMemory() { munmap(data_, size_); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  absl::Span<std::byte> all() const { return {data_, size_}; }
  absl::Span<std::byte> Of(const Grant& grant) const {
    return all().subspan(static_cast<size_t>(grant.offset),
                         static_cast<size_t>(grant.size_bytes));
  }

 private:
  const size_t size_;
  std::byte* data_ = nullptr;
};

// All files of a folder and those below it.
bool HasForeignFile(const std::string& folder) {
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (HasForeign(bytes)) return true;
  }
  return false;
}

enum class HowItEnds : uint8_t { kCloses, kDrops, kIsKilled };

class ForeignBytes : public testing::TestWithParam<HowItEnds> {
 protected:
  void SetUp() override {
    if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
    RunningDaemon::Setting setting;
    setting.tiers =
        absl::StrCat("'dram=8MiB', 'nvme:", path_.path(), "=16MiB'");
    daemon_ = std::make_unique<RunningDaemon>("", setting);
    ASSERT_TRUE(daemon_->Serves());
  }

  // Two processes of a job: one fills its memory to the last byte, with what it
  // grew by; the other one the disk, and its memory through pins.
  void FillAll(PlayedProcess::Stage& stage) {
    RawJob raw(*daemon_, kFilled, kGrown);
    raw.Ask(GrowRequest{{.number = 1}, kGrown});
    TERRACE_CHECK(raw.Outcome().ok());
    const MappedMemory memory(raw);
    WriteForeign(memory.all().first(kFilled + kGrown));
    TERRACE_CHECK(HasForeign(memory.all().subspan(kFilled + 5)));
    auto job = ConnectAs(*daemon_, kFilled);
    TERRACE_CHECK(job.ok());
    for (int i = 0; i < 100; ++i) {
      const auto tensor = RegisterOf(**job, absl::StrCat("t", i), 64 << 10);
      TERRACE_CHECK(tensor.ok());
      auto pin = (*job)->Acquire(*tensor, Access::kOverwrite, Later());
      TERRACE_CHECK(pin.ok());
      WriteForeign(pin->data());
    }
    TERRACE_CHECK((*job)->GetStats().bytes_written() > kMuch);
    stage.Tell();
    stage.Await();
    if (GetParam() == HowItEnds::kCloses) {
      TERRACE_CHECK((*job)->Close(Later()).ok());
    }
  }
  void LetItComeAndGo() {
    PlayedProcess process(
        [this](PlayedProcess::Stage& stage) { FillAll(stage); });
    ASSERT_TRUE(process.HasTold());
    EXPECT_TRUE(HasForeignFile(path_.path())) << "it has written nothing";
    if (GetParam() == HowItEnds::kIsKilled) process.Kill();
    process.GoOn();
    ASSERT_TRUE(daemon_->WaitUntil(
        [&] { return UsedMemory(*daemon_) == 0 && UsedPath(*daemon_) == 0; }));
  }

  const TemporaryDirectory path_;
  std::unique_ptr<RunningDaemon> daemon_;
};

TEST_P(ForeignBytes, AreNotInMemoryThatIsNew) {
  ASSERT_NO_FATAL_FAILURE(LetItComeAndGo());
  RawJob job(*daemon_, kFilled, kGrown);
  job.Ask(GrowRequest{{.number = 1}, kGrown});
  ASSERT_TRUE(job.Outcome().ok());
  const MappedMemory memory(job);
  // Not theirs, nor anybody's.
  const auto some =
      std::find_if(memory.all().begin(), memory.all().end(),
                   [](std::byte each) { return each != std::byte{}; });
  EXPECT_EQ(some - memory.all().begin(), job.file_bytes());
  // What follows a tensor's bytes, up to whole blocks, comes and goes with it.
  const int64_t queue = job.Open(2, 64 << 10);
  std::vector<TensorId> tensors;
  for (uint64_t i = 0; i < 240; ++i) {
    const int64_t sizes[] = {1, 4095, 4097, 60'000, 64 << 10};
    tensors.push_back(job.Register(3 + i, absl::StrCat("t", i), sizes[i % 5]));
    const auto grant = job.Take(queue, tensors.back(), Access::kOverwrite);
    ASSERT_TRUE(grant.ok()) << grant.status();
    ASSERT_FALSE(HasForeign(memory.Of(*grant))) << i;
    WritePattern(memory.Of(*grant), static_cast<uint8_t>(i));
    job.Ask(EndPinRequest{.token = grant->token});
  }
  for (uint64_t i = 0; i < 240; ++i) {
    const auto grant = job.Take(queue, tensors[i], Access::kRead);
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_TRUE(HasPattern(memory.Of(*grant), static_cast<uint8_t>(i))) << i;
    if (i % 10 == 9) {
      ASSERT_FALSE(HasForeign(memory.all())) << i;
    }
    job.Ask(EndPinRequest{.token = grant->token});
  }
  EXPECT_FALSE(HasForeignFile(path_.path()));
}

TEST_P(ForeignBytes, AreNotInTensorsThatWereNotWrittenInFull) {
  ASSERT_NO_FATAL_FAILURE(LetItComeAndGo());
  auto job = ConnectAs(*daemon_, kFilled);
  ASSERT_TRUE(job.ok()) << job.status();
  constexpr int kPartial = 100;
  constexpr size_t kWritten = 1000;
  std::vector<TensorId> tensors;
  for (int i = 0; i < kPartial; ++i) {
    const auto tensor = RegisterOf(**job, absl::StrCat("t", i), 64 << 10);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    tensors.push_back(*tensor);
    for (const Access access : {Access::kRead, Access::kUpdate}) {
      const absl::Status unwritten =
          (*job)->Acquire(*tensor, access, Later()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(unwritten)) << unwritten;
    }
    auto pin = (*job)->Acquire(*tensor, Access::kOverwrite, Later());
    ASSERT_TRUE(pin.ok()) << pin.status();
    ASSERT_FALSE(HasForeign(pin->data())) << i;
    WritePattern(pin->data().first(kWritten), static_cast<uint8_t>(i));
  }
  for (int i = 0; i < kPartial; ++i) {
    const auto pin = (*job)->Acquire(tensors[static_cast<size_t>(i)],
                                     Access::kRead, Later());
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(
        HasPattern(pin->data().first(kWritten), static_cast<uint8_t>(i)))
        << i;
    ASSERT_FALSE(HasForeign(pin->data())) << i;
  }
  EXPECT_GT((*job)->GetStats().bytes_read(), kMuch);
  EXPECT_FALSE(HasForeignFile(path_.path()));
}

INSTANTIATE_TEST_SUITE_P(Ends, ForeignBytes,
                         testing::Values(HowItEnds::kCloses, HowItEnds::kDrops,
                                         HowItEnds::kIsKilled),
                         [](const auto& each) -> std::string {
                           if (each.param == HowItEnds::kCloses)
                             return "Closes";
                           return each.param == HowItEnds::kDrops ? "Drops"
                                                                  : "IsKilled";
                         });

}  // namespace
}  // namespace terrace
