// What a process makes of its daemon's news: a daemon's numbers are checked
// before anybody is told of them.
#include "daemon/client/queue_sinks.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr ClientId kClient = 3;
constexpr int64_t kMemory = 64 << 10;
constexpr int64_t kSlots = 5;
constexpr int64_t kBytes = 6;

class Ends final : public PinOwner {
 public:
  void EndPin(uint64_t token, PinEnd /*end*/) override {
    tokens.push_back(token);
  }
  std::vector<uint64_t> tokens;
};

class QueueSinksTest : public testing::Test {
 protected:
  void SetUp() override {
    sinks_.OpenQueue(kSlots);
    sinks_.OpenBytes(kBytes);
  }
  static Grant PinAt(int64_t offset, int64_t size_bytes,
                     ClientId client = kClient) {
    return {TokensOf(client) | 1, TensorId{1}, offset, size_bytes};
  }
  template <typename News>
  absl::Status Heard(int64_t queue, absl::StatusOr<Grants> grants) {
    News news;
    news.queue = queue;
    news.groups.resize(1);
    news.groups.front().grants = std::move(grants);
    return sinks_.Hear(news);
  }
  template <typename News>
  void ExpectWrong(int64_t queue, absl::StatusOr<Grants> grants,
                   const std::string& words) {
    const absl::Status told = Heard<News>(queue, std::move(grants));
    EXPECT_TRUE(absl::IsInternal(told)) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr(words));
  }

  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  Port port_{kClient, ends_};
  QueueSinks sinks_{port_, kMemory};
};

TEST_F(QueueSinksTest, PinsAreWithinTheMemory) {
  EXPECT_TRUE(Heard<QueueNews>(kSlots, Grants{PinAt(0, kMemory)}).ok());
  EXPECT_TRUE(Heard<BytesNews>(kBytes, Grants{PinAt(kMemory, 0)}).ok());
  for (const Grant& wrong :
       {PinAt(-1, 1), PinAt(0, -1), PinAt(1, kMemory), PinAt(kMemory + 1, 0),
        PinAt(INT64_MAX, INT64_MAX), PinAt(0, 1, kClient + 1)}) {
    ExpectWrong<QueueNews>(kSlots, Grants{wrong}, "a pin of ");
    ExpectWrong<BytesNews>(kBytes, Grants{PinAt(0, 1), wrong}, "a pin of ");
  }
  ExpectWrong<QueueNews>(kSlots, Grants(), "no pins");
}

TEST_F(QueueSinksTest, NewsAreOfAQueueOfTheirKind) {
  ExpectWrong<QueueNews>(kBytes, absl::CancelledError(""), "no such queue: 6");
  ExpectWrong<BytesNews>(kSlots, absl::CancelledError(""), "no such queue: 5");
  ExpectWrong<BytesNews>(kBytes + 1, absl::CancelledError(""), "queue: 7");
  ExpectWrong<QueueNews>(-1, Grants{PinAt(0, 1)}, "no such queue: -1");
}

// A group may have been on its way to the daemon while the queue closed there.
TEST_F(QueueSinksTest, ARefusalOfWhatHasGoneIsNothing) {
  sinks_.Hear(QueueGone{kBytes});
  EXPECT_FALSE(sinks_.Has(kBytes));
  EXPECT_TRUE(
      Heard<BytesNews>(kBytes, absl::InvalidArgumentError("no queue")).ok());
  ExpectWrong<BytesNews>(kBytes, Grants{PinAt(0, 1)}, "no such queue: 6");
}

}  // namespace
}  // namespace terrace
