// What prefetch and eviction are worth, in virtual time: a customer that uses
// one tensor at a time, in an order that repeats over its steps.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

constexpr int kOrderedTensors = 40;
constexpr int64_t kTensorBytes = 64 << 10;
constexpr int64_t kRate = 1 << 30;

absl::Duration TransferTime() {
  return absl::Seconds(ResidentBytes(kTensorBytes)) / kRate;
}

// Contents of a tensor after `step`: whatever was lost or mixed up on the way
// is seen.
uint64_t Mark(int tensor, int step) {
  return static_cast<uint64_t>(tensor) * 1000003 + static_cast<uint64_t>(step);
}

class Customer {
 public:
  Customer(const WorldOptions& options, int slots) : world_(options) {
    for (int i = 0; i < kOrderedTensors; ++i) {
      const auto id = world_.runtime().Register(
          {.name = absl::StrCat("t", i), .size_bytes = kTensorBytes});
      EXPECT_TRUE(id.ok()) << id.status();
      ids_.push_back(*id);
    }
    auto queue =
        world_.runtime().OpenQueue(kTensorBytes, slots, absl::InfiniteFuture());
    EXPECT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    std::vector<int> all(kOrderedTensors);
    std::iota(all.begin(), all.end(), 0);
    Step(0, all, Access::kOverwrite, absl::ZeroDuration());
  }

  // One tensor at a time: asks, waits, computes, releases. Returns how much
  // virtual time that took.
  absl::Duration Step(int step, const std::vector<int>& order, Access access,
                      absl::Duration compute) {
    const absl::Time begin = world_.clock().Now();
    EXPECT_TRUE(queue_->BeginStep(step).ok());
    for (const int tensor : order) Use(tensor, step, access, compute);
    const absl::Status committed = queue_->CommitStep({step});
    EXPECT_TRUE(committed.ok()) << committed;
    return world_.clock().Now() - begin;
  }

  World& world() { return world_; }
  Stats stats() { return world_.runtime().GetStats(); }

 private:
  void Use(int tensor, int step, Access access, absl::Duration compute) {
    const Want want{ids_[static_cast<size_t>(tensor)], access};
    ASSERT_TRUE(queue_->Push({&want, 1}, 0, absl::InfiniteFuture()).ok());
    auto ready = queue_->Next(absl::InfiniteFuture());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    Pin pin = std::move(ready->pins->front());
    uint64_t found = 0;
    std::memcpy(&found, pin.data().data() + kTensorBytes - 8, 8);
    if (access != Access::kOverwrite) {
      ASSERT_EQ(found, marks_[static_cast<size_t>(tensor)]);
    }
    const absl::Time done = world_.clock().Now() + compute;
    world_.clock().RunUntil([] { return false; }, done);
    ASSERT_GE(world_.clock().Now(), done);
    if (access == Access::kRead) return;
    const uint64_t mark = Mark(tensor, step);
    std::memcpy(pin.data().data() + kTensorBytes - 8, &mark, 8);
    marks_[static_cast<size_t>(tensor)] = mark;
  }

  World world_;
  std::vector<TensorId> ids_;
  std::vector<uint64_t> marks_ = std::vector<uint64_t>(kOrderedTensors);
  std::unique_ptr<RequestQueue> queue_;
};

struct Order {
  std::string name;
  std::vector<int> tensors;
};

std::vector<Order> Orders() {
  std::vector<int> forward(kOrderedTensors);
  std::iota(forward.begin(), forward.end(), 0);
  std::vector<Order> orders;
  for (const uint64_t seed : {1, 2, 3}) {
    orders.push_back({absl::StrCat("random ", seed), forward});
    std::shuffle(orders.back().tensors.begin(), orders.back().tensors.end(),
                 std::mt19937_64(seed));
  }
  orders.push_back({"reversed", {forward.rbegin(), forward.rend()}});
  orders.push_back({"skipped", {}});
  for (const int i : forward) {
    if (i % 3 != 1) orders.back().tensors.push_back(i);
  }
  orders.push_back({"skipped, then back", {}});
  for (int i = 0; i < kOrderedTensors; i += 2)
    orders.back().tensors.push_back(i);
  for (int i = kOrderedTensors - 1; i > 0; i -= 2)
    orders.back().tensors.push_back(i);
  return orders;
}

// Virtual time of three steps after the order was seen once. Nothing stays:
// the budget is the window.
absl::Duration TimeOf(const Order& order, Access access, bool prefetch) {
  WorldOptions options;
  options.prefetch = prefetch;
  options.paths = 1;
  options.budget_bytes = WindowBytes(kTensorBytes, 4);
  options.pace = {kRate, kRate};
  Customer customer(options, 4);
  customer.Step(1, order.tensors, access, TransferTime());
  absl::Duration time;
  for (int step = 2; step <= 4; ++step) {
    time += customer.Step(step, order.tensors, access, TransferTime());
  }
  return time;
}

TEST(AccessOrder, PrefetchBeatsDemandOnEveryRepeatingOrder) {
  for (const Order& order : Orders()) {
    for (const Access access : {Access::kRead, Access::kUpdate}) {
      SCOPED_TRACE(order.name);
      const absl::Duration demand = TimeOf(order, access, false);
      const absl::Duration ahead = TimeOf(order, access, true);
      const double saved = 1 - absl::FDivDuration(ahead, demand);
      const double bound = absl::FDivDuration(
          ahead,
          TransferTime() * static_cast<int64_t>(3 * order.tensors.size()));
      std::printf("%s, %s: %.1f %% saved, %.3f of max(read, compute)\n",
                  order.name.c_str(),
                  access == Access::kRead ? "read" : "update", 100 * saved,
                  bound);
      EXPECT_GE(saved, 0.30);
      EXPECT_GE(bound, 1.0);  // faster than the device: time is not counted
    }
  }
}

// Share of requests of a cyclic scan that find their tensor in place, when
// `stay` of them fit beside the window.
double HitShare(EvictionKind eviction, int stay, Access access) {
  WorldOptions options;
  options.prefetch = false;
  options.paths = 1;
  options.eviction = eviction;
  options.budget_bytes =
      WindowBytes(kTensorBytes, 1) + stay * ResidentBytes(kTensorBytes);
  Customer customer(options, 1);
  std::vector<int> scan(kOrderedTensors);
  std::iota(scan.begin(), scan.end(), 0);
  int step = 1;
  for (; step <= 2; ++step) customer.Step(step, scan, access, TransferTime());
  const int64_t before = customer.stats().hits;
  for (; step <= 7; ++step) customer.Step(step, scan, access, TransferTime());
  return static_cast<double>(customer.stats().hits - before) /
         (5 * kOrderedTensors);
}

TEST(AccessOrder, NextUseKeepsItsShareOfACyclicScanAndLruNothing) {
  for (const int stay : {10, 20, 30}) {
    for (const Access access : {Access::kRead, Access::kUpdate}) {
      SCOPED_TRACE(testing::Message() << stay << " of " << kOrderedTensors);
      const double next_use = HitShare(EvictionKind::kNextUse, stay, access);
      const double lru = HitShare(EvictionKind::kLru, stay, access);
      const double capacity = static_cast<double>(stay) / kOrderedTensors;
      std::printf("room for %.2f (%s): next-use hits %.3f, LRU %.3f\n",
                  capacity, access == Access::kRead ? "read" : "update",
                  next_use, lru);
      EXPECT_GE(next_use, 0.9 * capacity);
      EXPECT_LE(next_use,
                capacity + 1.5 / kOrderedTensors);  // and the one slot
      // A slot's tensor may be found once more. What is dirty leaves late, and
      // LRU gains by it what it would not keep.
      if (access == Access::kRead) {
        EXPECT_LE(lru, 1.5 / kOrderedTensors);
      }
      EXPECT_LT(lru, next_use);
    }
  }
}

}  // namespace
}  // namespace terrace
