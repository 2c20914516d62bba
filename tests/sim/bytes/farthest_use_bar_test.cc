// What a customer of a queue of bytes reads, beside what farthest next use
// reads over the same uses (bench/offline/farthest_use.h).
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/offline/farthest_use.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

using bench::FarthestNextUse;
using bench::OperandUse;
using bench::Operation;

// Over a cycle of 60 what stays is the same after each 59 steps: twice that is
// counted, as the two may begin with another of them.
constexpr int kSteps = 120;
constexpr int kWarm = 2;

// Operations one after the other over tensors that are only read. What is
// recalled between operations is idle.
class Reader {
 public:
  Reader(int64_t budget_bytes, const std::vector<int64_t>& sizes)
      : world_({.budget_bytes = budget_bytes, .path_bytes = 64 << 20}) {
    auto queue = world_.runtime().OpenBytes(budget_bytes);
    EXPECT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto id = world_.runtime().Register(
          {.name = absl::StrCat(i), .size_bytes = sizes[i]});
      EXPECT_TRUE(id.ok()) << id.status();
      tensors_.push_back(*id);
      Have({static_cast<int>(i)}, Access::kOverwrite);
    }
    held_.clear();
  }

  void Step(int64_t step, const std::vector<std::vector<int>>& operations) {
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    for (const std::vector<int>& each : operations) Have(each, Access::kRead);
    ASSERT_TRUE(queue_->CommitStep({step}).ok());
  }
  int64_t bytes_read() { return world_.runtime().GetStats().bytes_read(); }

 private:
  void Have(const std::vector<int>& operands, Access access) {
    std::vector<Want> wants;
    std::vector<TensorId> touched;
    in_use_.clear();
    std::vector<uint64_t> tokens;
    for (const int each : operands) {
      const TensorId id = tensors_[static_cast<size_t>(each)];
      const auto found = held_.find(id.value);
      if (found == held_.end()) {
        wants.push_back({id, access});
        continue;
      }
      touched.push_back(id);
      tokens.push_back(found->second.token());
      in_use_[found->second.token()] = false;
    }
    if (!touched.empty()) queue_->Touch(touched);
    if (!wants.empty()) Take(wants, tokens);
    for (const auto& [token, wanted] : in_use_) {
      if (wanted) End(token);
    }
    in_use_.clear();
  }

  void Take(const std::vector<Want>& wants,
            const std::vector<uint64_t>& tokens) {
    const auto request = queue_->Push(wants, tokens, absl::InfiniteFuture());
    ASSERT_TRUE(request.ok()) << request.status();
    while (true) {
      auto news = queue_->Await(*request, absl::InfiniteFuture());
      ASSERT_TRUE(news.ok()) << news.status();
      if (news->pins.has_value()) {
        ASSERT_TRUE(news->pins->ok()) << news->pins->status();
        for (Pin& pin : **news->pins) {
          in_use_[pin.token()] = false;
          held_[pin.tensor().value] = std::move(pin);
        }
      }
      for (const uint64_t token : news->recalls) {
        const auto used = in_use_.find(token);
        if (used == in_use_.end()) {
          End(token);
        } else {
          used->second = true;
          queue_->Keep(token);
        }
      }
      if (news->pins.has_value()) return;
    }
  }

  void End(uint64_t token) {
    std::erase_if(held_, [token](const auto& each) {
      return each.second.token() == token;
    });
  }

  World world_;
  std::unique_ptr<ByteQueue> queue_;
  std::vector<TensorId> tensors_;
  std::map<int64_t, Pin> held_;
  std::map<uint64_t, bool> in_use_;  // whether they are to end
};

// What the runtime reserves for tensors that come before they are used.
int64_t ForMotion(int64_t budget_bytes) { return budget_bytes / 8; }

// Of the runtime's bytes to the offline program's with the budget less what is
// for motion, from the third step on.
double Ratio(int64_t budget_bytes, const std::vector<int64_t>& sizes,
             const std::vector<std::vector<int>>& operations) {
  Reader reader(budget_bytes, sizes);
  int64_t before = 0;
  for (int step = 1; step <= kSteps; ++step) {
    if (step == kWarm + 1) before = reader.bytes_read();
    reader.Step(step, operations);
  }
  std::vector<Operation> trace;
  for (const std::vector<int>& each : operations) {
    Operation operation;
    for (const int tensor : each) {
      operation.push_back(
          {.tensor = absl::StrCat(tensor),
           .bytes = ResidentBytes(sizes[static_cast<size_t>(tensor)])});
    }
    trace.push_back(operation);
  }
  const auto ratio = [&](int64_t budget) {
    const auto read = static_cast<double>(reader.bytes_read() - before);
    return read / static_cast<double>(
                      FarthestNextUse(trace, budget, kSteps, kWarm).bytes_read);
  };
  const double without = ratio(budget_bytes - ForMotion(budget_bytes));
  std::printf(
      "%.3f of farthest next use without what is for motion, %.3f of "
      "it with the whole budget\n",
      without, ratio(budget_bytes));
  return without;
}

TEST(FarthestUseBar, ACycleOfOneSizeReadsNoMore) {
  constexpr int64_t kSize = 12 << 10;
  const std::vector<int64_t> sizes(60, kSize);
  std::vector<std::vector<int>> operations;
  for (int i = 0; i < 60; ++i) operations.push_back({i});
  for (const int64_t places : {15, 30, 50}) {
    EXPECT_LE(Ratio(places * ResidentBytes(kSize), sizes, operations), 1.03)
        << places;
  }
}

// Forward and backward over layers, some of whose operands several use. Rooms
// of many sizes leave parts between them that are too small for what comes.
TEST(FarthestUseBar, StepsOfSeveralOperandsReadNearlyAsLittle) {
  constexpr int kLayers = 40;
  std::mt19937_64 random(5);
  for (const bool equal : {true, false}) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < 2 * kLayers; ++i) {
      const auto pages = static_cast<int64_t>(equal ? 4 : 1 + random() % 8);
      sizes.push_back(pages << 12);
    }
    std::vector<std::vector<int>> operations;
    for (int i = 0; i < kLayers; ++i)
      operations.push_back({i, kLayers + i / 4});
    for (int i = kLayers; i-- > 0;) operations.push_back({i, kLayers + i / 4});
    int64_t all = 0;
    for (int i = 0; i < kLayers + kLayers / 4; ++i) {
      all += ResidentBytes(sizes[static_cast<size_t>(i)]);
    }
    for (const int64_t budget : {all / 4, all / 2}) {
      EXPECT_LE(Ratio(budget / 4096 * 4096, sizes, operations), 1.03) << budget;
    }
  }
}

}  // namespace
}  // namespace terrace
