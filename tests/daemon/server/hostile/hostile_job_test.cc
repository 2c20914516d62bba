// What a process may do to the runtime that the daemon has for it, and to the
// memory that both have.
#include "tests/daemon/server/hostile/hostile_job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/wire/child_sender.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMemory = kHostileMemory;

TEST_F(HostileJobTest, ValuesThatAreNoneAreRefusedOneByOne) {
  RawJob job(daemon_);
  const TensorId a = job.Register(1, "a");
  const int64_t queue = job.Open(2);
  const auto refused = [&job](JobRequest request) {
    job.Ask(std::move(request));
    const absl::Status how = job.Outcome();
    EXPECT_TRUE(absl::IsInvalidArgument(how)) << how;
    return std::string(how.message());
  };
  const auto pushed = [&](TensorId tensor, Access access, int64_t at) {
    PushRequest push;
    push.queue = at;
    push.wants = {{tensor, access}};
    push.deadline = absl::InfiniteFuture();
    return refused(std::move(push));
  };
  EXPECT_THAT(pushed(TensorId{99}, Access::kRead, queue), HasSubstr("99"));
  EXPECT_THAT(pushed(a, static_cast<Access>(200), queue), HasSubstr("200"));
  EXPECT_THAT(pushed(a, Access::kRead, queue + 1), HasSubstr("no queue"));
  EXPECT_THAT(refused(StepRequest{
                  {.number = 9}, static_cast<StepRequest::Kind>(77), queue, 1}),
              HasSubstr("77"));
  EXPECT_THAT(refused(UnregisterRequest{{.number = 10}, TensorId{-5}}),
              HasSubstr("-5"));
  EXPECT_THAT(
      refused(OpenRequest{.id = {.number = 11}, .slot_bytes = -1, .slots = 1}),
      HasSubstr("-1"));
  TensorSpec spec;
  spec.name.assign(100 << 10, 'n');
  spec.size_bytes = 4096;
  EXPECT_THAT(refused(RegisterRequest{{.number = 12}, {spec}}),
              HasSubstr("102400 bytes"));
  // These have no answer, and no effect.
  job.Ask(EndPinRequest{.token = 1});
  job.Ask(EndPinRequest{.token = TokensOf(job.client()) | 12345});
  job.Ask(EndPinRequest{.token = TokensOf(job.client()),
                        .end = static_cast<PinEnd>(9)});
  job.Ask(CloseQueueRequest{queue + 7});
  job.Ask(PrefetchRequest{{TensorId{-1}, TensorId{1 << 20}}});
  job.Ask(StatsRequest{{.number = 13}});
  EXPECT_TRUE(job.Outcome().ok());
}

TEST_F(HostileJobTest, ANumberThatIsAnothersEndsIt) {
  RawJob job(daemon_);
  TensorSpec spec;
  spec.name = "a";
  spec.size_bytes = 4096;
  JobRequests twice;
  for (int i = 0; i < 2; ++i) {
    twice.requests.push_back(RegisterRequest{{.number = 5}, {spec}});
    spec.name = "b";
    spec.size_bytes = 1 << 30;
  }
  job.Send({.body = twice});
  ExpectEnd(job, absl::StatusCode::kInvalidArgument, "the number 5");
  RawJob none(daemon_);
  none.Ask(StatsRequest{{.number = 0}});
  ExpectEnd(none, absl::StatusCode::kInvalidArgument, "the number 0");
}

TEST_F(HostileJobTest, AMessageOfAnotherKindEndsIt) {
  for (const EnvelopeBody& body :
       std::vector<EnvelopeBody>{StatusRequest(), Hello{.version = kVersion}}) {
    RawJob job(daemon_);
    job.Send({.body = body});
    ExpectEnd(job, absl::StatusCode::kInvalidArgument, "none of a job's");
  }
  RawJob job(daemon_);
  job.Send({.body = JobNews()});
  ExpectEnd(job, absl::StatusCode::kInvalidArgument, "is an answer");
}

// However short its deadline, and whatever it has under way.
TEST_F(HostileJobTest, ACloseThatCannotWaitLeavesNothing) {
  for (int round = 0; round < 20; ++round) {
    RawJob job(daemon_);
    const int64_t queue = job.Open(1);
    for (uint64_t i = 0; i < 6; ++i) {
      PushRequest push;
      push.queue = queue;
      push.wants = {
          {job.Register(2 + i, absl::StrCat("t", i)), Access::kOverwrite}};
      push.deadline = absl::InfiniteFuture();
      job.Ask(std::move(push));
      const auto heard = job.Hear();
      ASSERT_TRUE(heard.ok()) << heard.status();
      const auto& news = std::get<QueueNews>(*heard);
      job.Ask(EndPinRequest{.token = news.groups.at(0).grants->front().token});
    }
    job.Ask(CloseRequest{
        .id = {.number = 99}, .deadline = absl::InfinitePast(), .force = true});
  }
  EXPECT_TRUE(
      daemon_.WaitUntil([&] { return UsedMemory(daemon_) == kMemory; }));
}

TEST_F(HostileJobTest, BytesThatWereChangedAreReadOrEndIt) {
  std::mt19937 draw(1);
  for (int round = 0; round < 60; ++round) {
    RawJob job(daemon_);
    job.Register(1, "a");
    JobRequests requests;
    TensorSpec spec;
    spec.name = "b";
    spec.size_bytes = 4096;
    requests.requests.push_back(RegisterRequest{{.number = 2}, {spec}});
    requests.requests.push_back(StatsRequest{{.number = 3}});
    for (int i = 0; i < 30; ++i) {
      auto bytes = *Encode({.body = requests});
      for (uint32_t k = 0; k <= draw() % 4; ++k) {
        bytes[draw() % bytes.size()] = static_cast<std::byte>(draw());
      }
      if (!job.Write(bytes) || !job.Ring()) break;  // it has ended
    }
  }
}

TEST_F(HostileJobTest, PiecesThatDoNotFollowEndIt) {
  const std::vector<std::byte> some(1000);
  RawJob other(daemon_);
  other.Send({.body = Fragment{some, 500}});
  other.Send({.body = JobRequests()});
  ExpectEnd(other, absl::StatusCode::kInvalidArgument, "a piece");
  RawJob gap(daemon_);
  gap.Send({.body = Fragment{some, 5000}});
  gap.Send({.body = Fragment{some, 5000}});
  ExpectEnd(gap, absl::StatusCode::kInvalidArgument, "a piece");
  // Sums that wrap around would follow, and without an end.
  RawJob wraps(daemon_);
  const std::vector<std::byte> page(4096);
  wraps.Send({.body = Fragment{page, 10}});
  wraps.Send({.body = Fragment{std::vector<std::byte>(20), ~uint64_t{0} - 9}});
  ExpectEnd(wraps, absl::StatusCode::kInvalidArgument, "a piece");
  RawJob small(daemon_);
  small.Send({.body = Fragment{std::vector<std::byte>(1), 1 << 20}});
  ExpectEnd(small, absl::StatusCode::kInvalidArgument, "a piece");
  RawJob large(daemon_);
  large.Send({.body = Fragment{some, uint64_t{1} << 63}});
  ExpectEnd(large, absl::StatusCode::kInvalidArgument, "a piece");
}

TEST_F(HostileJobTest, AChildOfItEndsIt) {
  RawJob job(daemon_);
  const std::byte bell{1};
  const pid_t child = SendFromChild(job.socket().descriptor(), {&bell, 1});
  ExpectEnd(job, absl::StatusCode::kPermissionDenied, absl::StrCat(child));
}

// It is not listened to while it does not read.
TEST_F(HostileJobTest, WhoDoesNotReadHoldsUpItself) {
  RawJob job(daemon_);
  uint64_t number = 1;
  for (int quiet = 0; quiet < 20;) {
    JobRequests requests;
    requests.requests.push_back(StatsRequest{{.number = ++number}});
    if (job.Write(*Encode({.body = requests}))) {
      quiet = 0;
    } else {
      ++quiet;
      usleep(20 * 1000);
    }
    ASSERT_LT(number, 100000u);
  }
  EXPECT_TRUE(Holds(*other_, kept_, 7));
}

TEST_F(HostileJobTest, TheMemoryKeepsItsSize) {
  RawJob job(daemon_);
  ExpectFixedSize(job.memory());
  const int fd = job.memory().get();
  struct stat found = {};
  ASSERT_EQ(fstat(fd, &found), 0);
  EXPECT_EQ(fallocate(fd, 0, found.st_size, 4096), -1);
  // Its own bytes it may lose.
  EXPECT_EQ(
      fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMemory), 0);
  job.Register(1, "a");
}

// What tells it of stopped loops is the daemon's to write, who goes on to.
TEST_F(HostileJobTest, ThePageOfLoopsIsTheDaemonsAlone) {
  RawJob job(daemon_);
  const int fd = job.page().get();
  EXPECT_EQ(write(fd, "!", 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
            -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  const auto turns = [&] {
    uint64_t words[3] = {};  // the third counts
    EXPECT_EQ(pread(fd, words, sizeof(words), 0), ssize_t{sizeof(words)});
    return words[2];
  };
  const uint64_t before = turns();
  EXPECT_TRUE(daemon_.WaitUntil([&] { return turns() > before + 1; }));
  job.Register(1, "a");
}

// While the daemon reads and writes them, checks and all.
TEST_F(HostileJobTest, AHoleUnderTransfersIsItsOwnLoss) {
  RawJob job(daemon_);
  const int64_t queue = job.Open(1);
  std::vector<TensorId> tensors;
  for (uint64_t i = 0; i < 8; ++i) {
    tensors.push_back(job.Register(2 + i, absl::StrCat("t", i)));
  }
  for (int round = 0; round < 40; ++round) {
    PushRequest push;
    push.queue = queue;
    push.wants = {{tensors[static_cast<size_t>(round) % 8],
                   round < 8 ? Access::kOverwrite : Access::kUpdate}};
    push.tag = static_cast<uint64_t>(round);
    push.deadline = absl::InfiniteFuture();
    job.Ask(std::move(push));
    absl::StatusOr<JobNewsEntry> heard = job.Hear();
    ASSERT_TRUE(heard.ok()) << heard.status();
    const auto& news = std::get<QueueNews>(*heard);
    ASSERT_EQ(news.groups.size(), 1u);
    fallocate(job.memory().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              kMemory);
    if (!news.groups[0].grants.ok()) continue;  // its bytes were gone
    job.Ask(EndPinRequest{.token = news.groups[0].grants->front().token});
  }
}

}  // namespace
}  // namespace terrace
