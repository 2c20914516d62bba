// Parameters come from their owners in one order, operations wait for them, and
// what fails is told by name and exchanged once it can be. The group is one
// whose other rank is played by the test.
#include "libtorch/step/late/parameter_exchange.h"

#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/step/late/update_net.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kHere = 0;
constexpr int kThere = 1;

class EndedWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// Rank 1 of two is what the test says it is.
class PlayedGroup final : public c10d::Backend {
 public:
  PlayedGroup() : Backend(kHere, 2) {}
  const std::string getBackendName() const override { return "played"; }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    const at::Tensor bytes = tensors.at(0);
    const bool is_said = number_++ % 2 == 1;
    if (!is_said) before_values(static_cast<int>(options.rootRank));
    if (options.rootRank == kHere) {
      (is_said ? told : sent).push_back(bytes.clone());
    } else if (is_said) {
      std::memcpy(bytes.data_ptr(), said.data(), said.size());
    } else {
      bytes.fill_(value);
    }
    return c10::make_intrusive<EndedWork>();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<EndedWork>();
  }

  std::function<void(int owner)> before_values = [](int) {};
  int value = 7;     // of each byte that rank 1 sends
  std::string said;  // what it says of them
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> told;  // of what was sent

 private:
  int number_ = 0;
};

class ParameterExchangeTest : public testing::Test {
 protected:
  ParameterExchangeTest()
      : played_(c10::make_intrusive<PlayedGroup>()),
        group_(c10::make_intrusive<c10d::ProcessGroup>(kHere, 2)) {
    group_->setBackend(c10::DeviceType::CPU,
                       c10d::ProcessGroup::BackendType::CUSTOM, played_);
  }

  std::unique_ptr<ParameterExchange> Begin(
      std::vector<ExchangedParameter> parameters) {
    auto begun = ParameterExchange::Begin(group_, kHere, std::move(parameters));
    EXPECT_TRUE(begun.ok()) << begun.status();
    return begun.ok() ? *std::move(begun) : nullptr;
  }

  const c10::intrusive_ptr<PlayedGroup> played_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

at::Tensor Sevens(at::IntArrayRef sizes) {
  return at::full(sizes, 0x0707, at::kShort);
}

std::string WhatThrows(const at::Tensor& tensor) {
  try {
    static_cast<void>(tensor.sum());
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

TEST(PacksOfTest, SmallOnesOfAnOwnerTravelTogetherAndLargeOnesAlone) {
  const at::Tensor small = at::zeros({100}), large = at::zeros({1 << 20});
  const std::vector<ExchangedParameter> parameters = {
      {"a", small, 0}, {"b", small, 1}, {"c", at::zeros({0}), 0},
      {"d", small, 0}, {"e", large, 0}, {"f", small, 1},
      {"g", small, 0}};
  std::vector<std::vector<int>> packs;
  for (const ParameterPack& each : PacksOf(parameters)) {
    packs.push_back(each.parameters);
  }
  EXPECT_THAT(packs, ElementsAre(ElementsAre(0, 3), ElementsAre(1, 5),
                                 ElementsAre(4), ElementsAre(6)));
}

TEST_F(ParameterExchangeTest, ValuesComeBitForBitWhereverTheyLie) {
  const at::Tensor alone = at::zeros({1 << 20}, at::kShort);
  const at::Tensor first = at::zeros({5, 3}, at::kShort);
  const at::Tensor turned = at::zeros({4, 6}, at::kShort).t();
  const at::Tensor own = at::arange(9, at::kShort);
  auto exchange = Begin({{"alone", alone, kThere},
                         {"first", first, kThere},
                         {"own", own, kHere},
                         {"turned", turned, kThere}});
  EXPECT_TRUE(exchange->Wait().ok());
  EXPECT_TRUE(alone.equal(Sevens({1 << 20})));
  EXPECT_TRUE(first.equal(Sevens({5, 3})));
  EXPECT_TRUE(turned.equal(Sevens({6, 4})));
  ASSERT_EQ(played_->sent.size(), 1);
  EXPECT_TRUE(played_->sent[0].view(at::kShort).equal(own));
  EXPECT_EQ(exchange->bytes_sent(), 18);
  exchange.reset();
  EXPECT_THAT(UpdateNet::Get().pending(), IsEmpty());
}

TEST_F(ParameterExchangeTest, AnOperationWaitsForAParameterOfAnotherRank) {
  const at::Tensor far = at::zeros({8}, at::kShort);
  const at::Tensor own = at::ones({8}, at::kShort);
  Mutex mutex;
  CondVar changed;
  bool is_open = false;
  played_->before_values = [&](int) {
    MutexLock lock(mutex);
    while (!is_open) changed.Wait(mutex);
  };
  auto exchange = Begin({{"far", far, kThere}, {"own", own, kHere}});
  EXPECT_EQ(own.sum().item<int64_t>(), 8);  // may be read, and not written
  EXPECT_FALSE(UpdateNet::Get().IsFree(own.storage(), /*is_written=*/true));
  EXPECT_FALSE(UpdateNet::Get().IsFree(far.storage(), /*is_written=*/false));
  at::Tensor seen;
  std::thread reader([&] { seen = far + 0; });
  while (!UpdateNet::Get().IsAwaited()) std::this_thread::yield();
  {
    MutexLock lock(mutex);
    is_open = true;
    changed.SignalAll();
  }
  reader.join();
  EXPECT_TRUE(seen.equal(Sevens({8})));
  EXPECT_TRUE(exchange->Wait().ok());
  EXPECT_THAT(exchange->order(), ElementsAre(1, 0));
}

TEST_F(ParameterExchangeTest, WhatFailsIsNamedAndExchangedAgain) {
  const at::Tensor far = at::zeros({8}, at::kShort);
  const at::Tensor view = far.view({2, 4});
  played_->said = "EFBIG";
  auto exchange = Begin({{"far", far, kThere}});
  const absl::Status status = exchange->Wait();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(exchange->failed_rank(), kThere);
  EXPECT_THAT(WhatThrows(far), HasSubstr("'far' could not be updated: EFBIG"));
  EXPECT_TRUE(absl::IsAborted(exchange->Retry()));
  played_->said.clear();
  EXPECT_TRUE(exchange->Retry().ok());
  EXPECT_EQ(WhatThrows(far), "");
  EXPECT_TRUE(view.equal(Sevens({2, 4})));
}

// A path may be long, and Python reads the text as UTF-8.
TEST_F(ParameterExchangeTest, WhatIsSaidIsCutBetweenCharacters) {
  const at::Tensor own = at::zeros({8}, at::kShort);
  std::string why = " x";  // with the words before it an even number
  for (int i = 0; i < 700; ++i) why += "\u00fc";
  const auto updates = std::make_shared<PendingStorages>();
  updates->Add(0, "own", own.storage().unsafeGetStorageImpl(), nullptr,
               nullptr);
  updates->End(absl::UnknownError(why));
  UpdateNet::Get().Insert(updates);
  auto exchange = Begin({{"own", own, kHere}});
  EXPECT_TRUE(absl::IsAborted(exchange->Wait()));
  UpdateNet::Get().Erase(*updates);
  ASSERT_EQ(played_->told.size(), 1);
  const at::Tensor told = played_->told[0];
  const std::string text(
      reinterpret_cast<const char*>(told.data_ptr<uint8_t>()));
  const std::string begin = text.substr(0, text.find('x') + 1);
  EXPECT_LT(begin.size(), 100);
  const size_t letters = (1023 - begin.size()) / 2;
  EXPECT_EQ(text, begin + why.substr(2, 2 * letters));
}

TEST_F(ParameterExchangeTest, AGroupThatFailsEndsTheExchange) {
  const at::Tensor far = at::zeros({8}, at::kShort);
  played_->before_values = [](int) { TORCH_CHECK(false, "no peer"); };
  auto exchange = Begin({{"far", far, kThere}});
  const absl::Status status = exchange->Wait();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no peer"));
  EXPECT_THAT(WhatThrows(far), HasSubstr("no peer"));
  EXPECT_EQ(exchange->Retry(), status);
  exchange.reset();  // given up: what there was may be used
  EXPECT_EQ(WhatThrows(far), "");
}

TEST_F(ParameterExchangeTest, WhatCannotBeExchangedIsRefused) {
  const auto begin = [this](at::Tensor tensor, int owner) {
    return ParameterExchange::Begin(group_, kHere, {{"p", tensor, owner}})
        .status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(begin(at::zeros({2}, at::kMeta), 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(begin(at::zeros({2}), 2)));
  EXPECT_THAT(UpdateNet::Get().pending(), IsEmpty());
}

}  // namespace
}  // namespace terrace
