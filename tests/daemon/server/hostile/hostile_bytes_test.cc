// What a process may do with queues of bytes.
#include <string>
#include <utility>

#include "tests/daemon/server/hostile/hostile_job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class HostileBytesTest : public HostileJobTest {};

TEST_F(HostileBytesTest, ValuesOfBytesThatAreNoneAreRefusedOneByOne) {
  RawJob job(daemon_);
  const TensorId a = job.Register(1, "a");
  const int64_t slots = job.Open(2);
  job.Ask(OpenBytesRequest{{.number = 3}, 64 << 10, ""});
  const int64_t bytes =
      std::get<OpenedQueue>(std::get<AnswerNews>(*job.Hear()).answer).id;
  const auto pushed = [&](PushBytesRequest push) {
    push.deadline = absl::InfiniteFuture();
    job.Ask(std::move(push));
    const absl::Status how = job.Outcome();
    EXPECT_TRUE(absl::IsInvalidArgument(how)) << how;
    return std::string(how.message());
  };
  EXPECT_THAT(pushed({.queue = bytes, .wants = {{TensorId{99}}}}),
              HasSubstr("99"));
  EXPECT_THAT(pushed({.queue = bytes, .wants = {{a}, {a}}}),
              HasSubstr("twice"));
  EXPECT_THAT(pushed({.queue = bytes, .wants = {{a}}, .lane = -1}),
              HasSubstr("lane"));
  EXPECT_THAT(
      pushed({.queue = bytes, .wants = {{a}}, .in_use = {~uint64_t{0}}}),
      HasSubstr("of client"));
  EXPECT_THAT(pushed({.queue = slots, .wants = {{a}}}), HasSubstr("has slots"));
  job.Ask(OpenBytesRequest{{.number = 4}, -1, ""});
  EXPECT_TRUE(absl::IsInvalidArgument(job.Outcome()));
  job.Ask(OpenBytesRequest{{.number = 5}, INT64_MAX, ""});
  EXPECT_TRUE(absl::IsResourceExhausted(job.Outcome()));
  // These have no answer, and no effect.
  job.Ask(WaitingRequest{bytes, {~uint64_t{0}}, true});
  job.Ask(WaitingRequest{slots, {}, true});
  job.Ask(HoldAtMostRequest{bytes, -1});
  job.Ask(KeepRequest{~uint64_t{0}});
  job.Ask(KeepRequest{TokensOf(job.client()) | 12345});
  job.Ask(TouchRequest{bytes, {TensorId{-1}}, 77});
  // Of pins that are none, thousands of times, nothing is kept.
  PushBytesRequest written{.queue = bytes,
                           .wants = {{a, Access::kOverwrite}},
                           .deadline = absl::InfiniteFuture()};
  written.in_use.assign(4096, TokensOf(job.client()) | 12345);
  job.Ask(std::move(written));
  const auto granted = std::get<BytesNews>(*job.Hear());
  ASSERT_TRUE(granted.groups.at(0).grants.ok());
  // What it holds to its end would be counted to it as long as it lives.
  job.Ask(EndPinRequest{.token = granted.groups[0].grants->front().token,
                        .end = PinEnd::kDiscard});
}

}  // namespace
}  // namespace terrace
