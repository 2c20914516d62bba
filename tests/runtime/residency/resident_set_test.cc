#include "runtime/residency/resident_set.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Notes what it is told, and picks all it is offered.
struct PolicyLog {
  std::vector<std::string> calls;
  std::vector<EvictionCandidate> offered;
};

class LoggingPolicy final : public EvictionPolicy {
 public:
  bool ranks_by_next_use() const override { return false; }
  explicit LoggingPolicy(PolicyLog& log) : log_(log) {}
  void OnResident(TensorId tensor) override { Note("+", tensor); }
  void OnTouch(TensorId tensor) override { Note("!", tensor); }
  void OnGone(TensorId tensor) override { Note("-", tensor); }
  void PickVictims(int64_t bytes, int64_t newcomer_use, bool must,
                   absl::Span<const EvictionCandidate> evictable,
                   std::vector<TensorId>* victims) override {
    log_.calls.push_back("pick " + std::to_string(bytes) + " for " +
                         std::to_string(newcomer_use) + (must ? " must" : ""));
    log_.offered.assign(evictable.begin(), evictable.end());
    for (const auto& each : evictable) victims->push_back(each.tensor);
  }

 private:
  void Note(const char* what, TensorId tensor) {
    log_.calls.push_back(what + std::to_string(tensor.value));
  }
  PolicyLog& log_;
};

class ResidentSetTest : public testing::Test {
 protected:
  Tensor& Add(int64_t size_bytes = 8192) {
    const auto id = static_cast<int64_t>(tensors_.size());
    tensors_.emplace_back(TensorSpec{.name = std::to_string(id)}, TensorId{id});
    residents_.Add(tensors_.back(), {id * 65536, size_bytes});
    return tensors_.back();
  }
  std::vector<int64_t> Pick(int64_t sample, bool must = false) {
    std::vector<int64_t> ids;
    for (const TensorId id : residents_.PickVictims(
             100, 7, must, sample,
             [this](const Tensor& tensor) { return tensor.id != stays_; },
             [](const Tensor& tensor) { return 1000 + tensor.id.value; })) {
      ids.push_back(id.value);
    }
    return ids;
  }

  PolicyLog log_;
  std::deque<Tensor> tensors_;
  TensorId stays_{-1};
  ResidentSet residents_{std::make_unique<LoggingPolicy>(log_)};
};

TEST_F(ResidentSetTest, BytesAndMembersAreCounted) {
  Tensor& a = Add(8192);
  Tensor& b = Add(4096);
  Tensor& c = Add(12288);
  EXPECT_EQ(residents_.size_bytes(), 24576);
  residents_.Remove(a);
  EXPECT_FALSE(residents_.Has(a));
  EXPECT_TRUE(residents_.Has(b));
  EXPECT_TRUE(residents_.Has(c));
  EXPECT_EQ(residents_.size_bytes(), 16384);
  residents_.Remove(a);  // none: nothing
  residents_.Remove(c);
  EXPECT_EQ(residents_.size_bytes(), 4096);
  ASSERT_EQ(residents_.all().size(), 1u);
  EXPECT_EQ(residents_.all()[0].tensor, &b);
  EXPECT_EQ(residents_.all()[0].room, (Extent{65536, 4096}));
}

TEST_F(ResidentSetTest, ThePolicyHearsOfResidentsAlone) {
  Tensor& a = Add();
  Tensor& b = Add();
  residents_.Touch(a);
  residents_.Remove(b);
  residents_.Touch(b);
  EXPECT_THAT(log_.calls, ElementsAre("+0", "+1", "!0", "-1"));
}

TEST_F(ResidentSetTest, ItIsOfferedThoseThatMayLeaveAndAreNotLeaving) {
  Add();
  Tensor& leaves = Add();
  Tensor& stays = Add();
  Add(4096);
  residents_.SetLeaving(leaves, true);
  stays_ = stays.id;
  EXPECT_THAT(Pick(64), ElementsAre(0, 3));
  EXPECT_EQ(log_.calls.back(), "pick 100 for 7");
  ASSERT_EQ(log_.offered.size(), 2u);
  EXPECT_EQ(log_.offered[1].size_bytes, 4096);
  EXPECT_EQ(log_.offered[1].next_use, 1003);
  EXPECT_EQ(residents_.leaving(), 1);
  residents_.SetLeaving(leaves, false);
  EXPECT_EQ(residents_.leaving(), 0);
  EXPECT_THAT(Pick(64), ElementsAre(0, 1, 3));
}

TEST_F(ResidentSetTest, ASampleIsLookedAtAndAllComeUpInTurn) {
  for (int i = 0; i < 5; ++i) Add();
  EXPECT_THAT(Pick(2), ElementsAre(0, 1));
  EXPECT_THAT(Pick(2), ElementsAre(2, 3));
  EXPECT_THAT(Pick(2), ElementsAre(4, 0));
}

TEST_F(ResidentSetTest, WithNobodyToOfferThePolicyIsAskedOnlyIfItMust) {
  Tensor& stays = Add();
  stays_ = stays.id;
  log_.calls.clear();
  EXPECT_THAT(Pick(64), IsEmpty());
  EXPECT_THAT(log_.calls, IsEmpty());
  EXPECT_THAT(Pick(64, /*must=*/true), IsEmpty());
  EXPECT_THAT(log_.calls, ElementsAre("pick 100 for 7 must"));
}

}  // namespace
}  // namespace terrace
