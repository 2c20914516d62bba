// What customers of queues of bytes, and of one with slots beside them, read
// and write, beside what farthest next use does over the same uses
// (bench/offline/farthest_use.h).
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/offline/farthest_use.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "terrace/runtime.h"
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
  Reader(int64_t budget_bytes, const std::vector<int64_t>& sizes,
         int64_t window_bytes)
      : world_({.budget_bytes = budget_bytes, .path_bytes = 64 << 20}) {
    auto queue = world_.runtime().OpenBytes(window_bytes);
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
  World& world() { return world_; }

  void Step(int64_t step, const std::vector<std::vector<int>>& operations) {
    Begin(step);
    for (const std::vector<int>& each : operations) Have(each, Access::kRead);
    Commit(step);
  }
  void Begin(int64_t step) { ASSERT_TRUE(queue_->BeginStep(step).ok()); }
  void Commit(int64_t step) { ASSERT_TRUE(queue_->CommitStep({step}).ok()); }
  int64_t bytes_read() { return world_.runtime().GetStats().bytes_read(); }

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

  // What is written is not pinned from then on.
  void Change(int tensor) {
    const TensorId id = tensors_[static_cast<size_t>(tensor)];
    held_.erase(id.value);
    Have({tensor}, Access::kUpdate);
    held_.erase(id.value);
  }

 private:
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
  Reader reader(budget_bytes, sizes, budget_bytes);
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

// An optimizer's state: a queue with slots, whose chunks are updated in their
// order, some of them asked for ahead.
class State {
 public:
  static constexpr int kSlots = 2;

  State(World& world, int chunks, int64_t bytes) {
    auto queue =
        world.runtime().OpenQueue(bytes, kSlots, absl::InfiniteFuture());
    EXPECT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    for (int i = 0; i < chunks; ++i) {
      const auto id = world.runtime().Register(
          {.name = absl::StrCat("chunk", i), .size_bytes = bytes});
      EXPECT_TRUE(id.ok()) << id.status();
      chunks_.push_back(*id);
      Push(i, Access::kOverwrite);
      Take().Release();
    }
  }

  void Begin(int64_t step) {
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    pushed_ = 0;
  }
  void Commit(int64_t step) { ASSERT_TRUE(queue_->CommitStep({step}).ok()); }
  // The next chunk of `order`, pinned; as many as there are slots are asked for
  // at a time.
  Pin Next(const std::vector<int>& order, size_t number) {
    for (; pushed_ < std::min(order.size(), number + kSlots); ++pushed_) {
      Push(order[pushed_], Access::kUpdate);
    }
    return Take();
  }

 private:
  void Push(int chunk, Access access) {
    const TensorId id = chunks_[static_cast<size_t>(chunk)];
    ASSERT_TRUE(queue_->Push({{id, access}}, 0, absl::InfiniteFuture()).ok());
  }
  Pin Take() {
    absl::StatusOr<Ready> ready = queue_->Next(absl::InfiniteFuture());
    EXPECT_TRUE(ready.ok() && ready->pins.ok());
    return std::move(ready->pins->front());
  }

  std::unique_ptr<RequestQueue> queue_;
  std::vector<TensorId> chunks_;
  size_t pushed_ = 0;
};

// Forward and backward over layers whose parameters and state are both below,
// and their updates, after backward or in it: the bytes read and written.
class Training {
 public:
  static constexpr int kLayers = 40;
  static constexpr int64_t kParameter = 12 << 10;
  static constexpr int64_t kChunk = 28 << 10;
  static int64_t AllBytes() {
    return kLayers * (ResidentBytes(kParameter) + ResidentBytes(kChunk));
  }

  Training(int64_t budget_bytes, bool in_backward)
      : budget_bytes_(budget_bytes),
        in_backward_(in_backward),
        reader_(budget_bytes, std::vector<int64_t>(kLayers, kParameter),
                /*window_bytes=*/4096),
        state_(reader_.world(), kLayers, kChunk) {
    for (int i = 0; i < kLayers; ++i) {
      order_.push_back(in_backward ? kLayers - 1 - i : i);
    }
  }

  void Step(int64_t step) {
    reader_.Begin(step);
    for (int i = 0; i < kLayers; ++i) reader_.Have({i}, Access::kRead);
    state_.Begin(step);
    for (int i = 0; i < kLayers; ++i) {
      reader_.Have({kLayers - 1 - i}, Access::kRead);
      if (in_backward_) Update(static_cast<size_t>(i));
    }
    for (size_t i = 0; i < order_.size() && !in_backward_; ++i) Update(i);
    state_.Commit(step);
    reader_.Commit(step);
  }
  int64_t moved() {
    const Stats stats = reader_.world().runtime().GetStats();
    EXPECT_EQ(stats.bytes.groups_beyond, 0);
    return stats.bytes_read() + stats.bytes_written();
  }

  std::vector<Operation> Trace() const {
    std::vector<Operation> trace;
    for (int i = 0; i < kLayers; ++i) trace.push_back({Use(i)});
    for (int i = kLayers; i-- > 0;) {
      trace.push_back({Use(i)});
      if (in_backward_) trace.push_back(Changed(i));
    }
    for (int i = 0; i < kLayers && !in_backward_; ++i) {
      trace.push_back(Changed(i));
    }
    return trace;
  }
  // What is not for motion.
  int64_t kept_bytes() const {
    const int64_t outside =
        budget_bytes_ - State::kSlots * ResidentBytes(kChunk);
    return outside - ForMotion(outside);
  }

 private:
  static OperandUse Use(int layer) {
    return {.tensor = absl::StrCat("p", layer),
            .bytes = ResidentBytes(kParameter)};
  }
  static Operation Changed(int layer) {
    OperandUse parameter = Use(layer);
    parameter.writes = true;
    return {parameter,
            {.tensor = absl::StrCat("s", layer),
             .bytes = ResidentBytes(kChunk),
             .writes = true}};
  }
  void Update(size_t number) {
    const Pin pin = state_.Next(order_, number);
    reader_.Change(order_[number]);
  }

  const int64_t budget_bytes_;
  const bool in_backward_;
  Reader reader_;
  State state_;
  std::vector<int> order_;  // of updates
};

TEST(FarthestUseBar, StateBelowMovesNoMoreBesideParameters) {
  constexpr int kTrainingSteps = 12;
  for (const bool in_backward : {false, true}) {
    for (const int64_t budget :
         {Training::AllBytes() / 4, Training::AllBytes() / 2}) {
      Training training(budget, in_backward);
      int64_t before = 0;
      for (int step = 1; step <= kTrainingSteps; ++step) {
        if (step == kWarm + 1) before = training.moved();
        training.Step(step);
      }
      const auto moved = static_cast<double>(training.moved() - before);
      const auto ratio = [&](int64_t bytes) {
        const auto least =
            FarthestNextUse(training.Trace(), bytes, kTrainingSteps, kWarm);
        return moved /
               static_cast<double>(least.bytes_read + least.bytes_written);
      };
      const double without = ratio(training.kept_bytes());
      std::printf("%.3f; %.3f with the whole budget\n", without, ratio(budget));
      EXPECT_LE(without, 1.03) << budget << (in_backward ? " in backward" : "");
    }
  }
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
