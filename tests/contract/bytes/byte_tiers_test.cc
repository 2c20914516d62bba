// Queues of bytes at two memories: who waits at one holds pins at the other.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;

class ByteTiersContract : public ContractTest {
 protected:
  // One tensor fills a memory.
  static constexpr int64_t kBytes = 3 * kPage;

  void Open() {
    Make(2, {.node_bytes = 2 * kPlace});
    for (const char* const tier : {"dram", "dram:node1"}) {
      auto queue = runtime().OpenBytes(2 * kPlace, tier);
      ASSERT_TRUE(queue.ok()) << queue.status();
      queues_.push_back(*std::move(queue));
    }
  }
  uint64_t Push(size_t at, Want want, std::vector<uint64_t> in_use) {
    const auto request = queues_[at]->Push({&want, 1}, in_use, Soon());
    EXPECT_TRUE(request.ok()) << request.status();
    return request.value_or(0);
  }
  Awaited Await(size_t at, uint64_t request) {
    auto news = queues_[at]->Await(request, Soon());
    EXPECT_TRUE(news.ok()) << news.status();
    return news.ok() ? *std::move(news) : Awaited();
  }
  Pin Have(size_t at, TensorId tensor, Access access) {
    Awaited news = Await(at, Push(at, {tensor, access}, {}));
    EXPECT_TRUE(news.pins.has_value() && news.pins->ok());
    if (!news.pins.has_value() || !news.pins->ok()) return Pin();
    return std::move((*news.pins)->front());
  }
  TensorId Written(size_t at, const std::string& name, uint8_t seed) {
    const TensorId id = world().Register(name, kBytes);
    WritePattern(Have(at, id, Access::kOverwrite).data(), seed);
    return id;
  }

  std::vector<std::unique_ptr<ByteQueue>> queues_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, ByteTiersContract,
                         testing::Values(TestWorld::kNodesVirtual,
                                         TestWorld::kNodes),
                         WorldParamName);

TEST_P(ByteTiersContract, WhereEachWaitsForTheOthersMemoryOneGoesBeyond) {
  Open();
  const TensorId near = Written(0, "near", 1);
  const TensorId wanted_near = Written(0, "wanted near", 2);
  const TensorId far = Written(1, "far", 3);
  const TensorId wanted_far = Written(1, "wanted far", 4);
  Pin pin_near = Have(0, near, Access::kRead);
  Pin pin_far = Have(1, far, Access::kRead);
  const uint64_t waits_far = Push(1, {wanted_far}, {pin_near.token()});
  EXPECT_THAT(Await(1, waits_far).recalls, ElementsAre(pin_far.token()));
  queues_[1]->Keep(pin_far.token());
  Awaited news = Await(0, Push(0, {wanted_near}, {pin_far.token()}));
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_GT(news.beyond_bytes, 0);
  EXPECT_TRUE(HasPattern((*news.pins)->front().data(), 2));
  (*news.pins)->front().ReleaseUnchanged();
  pin_far.ReleaseUnchanged();  // its use is over
  news = Await(1, waits_far);
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ(news.beyond_bytes, 0);
  EXPECT_TRUE(HasPattern((*news.pins)->front().data(), 4));
}

}  // namespace
}  // namespace terrace
