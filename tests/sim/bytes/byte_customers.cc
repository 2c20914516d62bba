#include "tests/sim/bytes/byte_customers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kBudget = 1 << 20;
constexpr int64_t kWindow = 240 << 10;
constexpr int64_t kDevice = 500 << 10;
constexpr int kCustomers = 3;
constexpr int kThreads = 3;
constexpr int kTensors = 24;

WorldOptions WorldOf(const ByteCustomersOptions& options) {
  WorldOptions world;
  world.seed = options.seed;
  world.budget_bytes = kBudget;
  world.path_bytes = 32 << 20;
  if (options.device) world.hbm_bytes = kDevice;
  world.task_spread = absl::Microseconds(20);
  world.io_timeout = absl::Seconds(5);
  world.check_every = 8;
  world.transcript = options.transcript;
  return world;
}

}  // namespace

// From a byte to more than a window, one to more than the budget.
int64_t ByteCustomers::SizeOf(int tensor) {
  if (tensor == 0) return 1;
  if (tensor == 1) return kBudget + (100 << 10);
  if (tensor == 2) return kWindow + (50 << 10);
  return 1 + (int64_t{tensor} * 7919 * 37) % (96 << 10);
}

ByteCustomers::ByteCustomers(const ByteCustomersOptions& options)
    : options_(options), random_(options.seed), world_(WorldOf(options)) {
  for (int i = 0; i < kTensors; ++i) {
    Truth& truth = tensors_.emplace_back();
    truth.bytes.resize(static_cast<size_t>(SizeOf(i)));
    const auto id =
        world_.runtime().Register({.name = absl::StrCat("t", i),
                                   .size_bytes = SizeOf(i),
                                   .step_number = i % 5 == 4 ? i : -1});
    EXPECT_TRUE(id.ok()) << id.status();
    truth.id = *id;
  }
  for (int i = 0; i < kCustomers; ++i) {
    Customer& customer = customers_.emplace_back();
    customer.answers = static_cast<Answers>(i % 2);
    if (options.never && i == 2) customer.answers = Answers::kNever;
    customer.on_device = options.device && i > 0;
    customer.threads.resize(kThreads);
    Open(customer);
  }
  if (options.reads) WriteAll();
}

ByteCustomers::~ByteCustomers() {
  left_.clear();
  for (Customer& customer : customers_) {
    customer.held.clear();
    customer.queue.reset();
  }
}

void ByteCustomers::Open(Customer& customer) {
  auto queue =
      world_.runtime().OpenBytes(kWindow, customer.on_device ? "hbm" : "");
  ASSERT_TRUE(queue.ok()) << queue.status();
  customer.queue = *std::move(queue);
  if (Draw(2) == 0) return;
  EXPECT_TRUE(
      customer.queue->HoldAtMost(static_cast<int64_t>(Draw(2 * kWindow))).ok());
}

void ByteCustomers::Run(int count) {
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) Act();
}

void ByteCustomers::Act() {
  ++acts_;
  Customer& customer = customers_[Draw(kCustomers)];
  const uint64_t what = Draw(100);
  if (what < 70) return Turn(customer, customer.threads[Draw(kThreads)]);
  if (what < 84) {
    return world_.PassToEvent(absl::Microseconds(1 << Draw(14)));
  }
  if (what < 90) {
    auto recalls = customer.queue->AwaitRecalls(world_.Now());
    if (recalls.ok()) Hear(customer, *recalls);
    return;
  }
  if (what < 94) {
    if (customer.late.empty()) return;
    const uint64_t token = customer.late.front();
    customer.late.erase(customer.late.begin());
    return Answer(customer, token);
  }
  if (what < 96) return Step(customer);
  if (what < 98) {
    if (left_.empty()) return;
    left_.erase(left_.begin() + static_cast<ptrdiff_t>(Draw(left_.size())));
    return;
  }
  if (what == 98) {
    if (options_.closes && Draw(4) == 0) Close(customer);
    return;
  }
  if (!options_.faults) return;
  faults_on_ = !faults_on_;
  if (!faults_on_) return world_.ClearFaults();
  world_.faults().SetChances({.error = 0.05,
                              .again = 0.1,
                              .no_space = 0.1,
                              .short_transfer = 0.1,
                              .delay = 0.1,
                              .reorder = 0.1,
                              .never = 0.02});
}

void ByteCustomers::Turn(Customer& customer, Thread& thread) {
  if (thread.request.has_value()) return Await(customer, thread);
  if (thread.joined.has_value()) {
    // Until the other thread has taken the answer, whatever that was.
    const bool waits = std::any_of(
        customer.coming.begin(), customer.coming.end(),
        [&](const auto& each) { return each.second == *thread.joined; });
    if (waits) return;
    thread.joined.reset();
    customer.queue->EndWaiting(thread.waiting_with);
    thread.next.clear();  // it looks again, with another operation
    return;
  }
  const size_t depth = thread.running.size();
  if (depth > 0 && (depth == 2 || Draw(3) > 0)) return End(customer, thread);
  Begin(customer, thread);
}

bool ByteCustomers::MayUse(const Customer& customer, const Use& use) const {
  const auto found = customer.held.find(use.tensor);
  return found != customer.held.end() && !found->second.wanted &&
         (use.access == Access::kRead || found->second.access != Access::kRead);
}

void ByteCustomers::Begin(Customer& customer, Thread& thread) {
  thread.next.clear();
  for (uint64_t i = 0; i <= Draw(3); ++i) {
    Use use{static_cast<int>(Draw(kTensors)), Access::kRead};
    // The large ones are rare.
    if (use.tensor < 3 && Draw(4) > 0) continue;
    const bool is_there =
        std::any_of(thread.next.begin(), thread.next.end(),
                    [&](const Use& each) { return each.tensor == use.tensor; });
    if (is_there) continue;
    const Truth& truth = tensors_[static_cast<size_t>(use.tensor)];
    if (!options_.reads) {
      if (Draw(3) == 0) use.access = Access::kUpdate;
      if (!truth.written || Draw(12) == 0) use.access = Access::kOverwrite;
    }
    thread.next.push_back(use);
  }
  if (thread.next.empty()) return;
  for (const Use& use : thread.next) {
    const auto coming = customer.coming.find(use.tensor);
    if (coming == customer.coming.end()) continue;
    thread.joined = coming->second;
    ++seen_.joins;
    thread.waiting_with = TokensOf(customer, thread);
    EXPECT_TRUE(customer.queue->BeginWaiting(thread.waiting_with).ok());
    return;
  }
  Push(customer, thread);
}

std::vector<uint64_t> ByteCustomers::TokensOf(const Customer& customer,
                                              const Thread& thread) const {
  std::set<uint64_t> tokens;
  for (const Operation& operation : thread.running) {
    for (const Use& use : operation) {
      tokens.insert(customer.held.at(use.tensor).pin.token());
    }
  }
  return {tokens.begin(), tokens.end()};
}

// What it has it uses from here on; the rest is one group.
void ByteCustomers::Push(Customer& customer, Thread& thread) {
  std::vector<Want> wants;
  std::vector<TensorId> touched;
  for (const Use& use : thread.next) {
    const auto found = customer.held.find(use.tensor);
    if (MayUse(customer, use)) {
      touched.push_back(tensors_[static_cast<size_t>(use.tensor)].id);
      continue;
    }
    if (found != customer.held.end()) {
      if (found->second.uses > 0) return thread.next.clear();
      EndPin(customer, use.tensor);
    }
    wants.push_back({tensors_[static_cast<size_t>(use.tensor)].id, use.access});
  }
  // A thread's uses follow each other.
  const auto lane =
      static_cast<int>(&thread - customer.threads.data()) % kMostLanes;
  customer.queue->Touch(touched, lane);
  std::vector<uint64_t> tokens = TokensOf(customer, thread);
  Operation has;
  for (const Use& use : thread.next) {
    if (!MayUse(customer, use)) continue;
    ++customer.held.at(use.tensor).uses;
    tokens.push_back(customer.held.at(use.tensor).pin.token());
    has.push_back(use);
  }
  std::erase_if(thread.next,
                [&](const Use& use) { return MayUse(customer, use); });
  thread.running.push_back(has);
  if (wants.empty()) return;
  thread.deadline = world_.Now() + absl::Microseconds(1 << (8 + Draw(16)));
  if (options_.reads) thread.deadline = absl::InfiniteFuture();
  thread.pushed = acts_;
  const auto request =
      customer.queue->Push(wants, tokens, thread.deadline, lane);
  ASSERT_TRUE(request.ok()) << request.status();
  thread.request = *request;
  for (const Use& use : thread.next) customer.coming[use.tensor] = *request;
}

void ByteCustomers::Await(Customer& customer, Thread& thread) {
  absl::StatusOr<Awaited> news =
      customer.queue->Await(*thread.request, world_.Now());
  if (!news.ok()) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(news.status())) << news.status();
    ASSERT_LT(world_.Now(), thread.deadline + kTransfers) << "not answered";
    // Acts are no measure of real time.
    ASSERT_TRUE(!options_.reads || InRealTime() ||
                acts_ - thread.pushed < 10'000)
        << "hangs";
    return;
  }
  // A recall may be of a pin that comes with it, and is not noted yet.
  Take(customer, thread, *news);
  Hear(customer, news->recalls);
}

void ByteCustomers::Take(Customer& customer, Thread& thread, Awaited& news) {
  if (!news.pins.has_value()) return;
  ++seen_.answers;
  if (news.beyond_bytes > 0) ++seen_.beyond;
  thread.request.reset();
  for (const Use& use : thread.next) customer.coming.erase(use.tensor);
  if (!news.pins->ok()) {
    Explain(news.pins->status(), customer, thread);
    ++seen_.failures;
    thread.next.clear();
    return End(customer, thread);  // of what it has
  }
  ASSERT_EQ((*news.pins)->size(), thread.next.size());
  for (size_t i = 0; i < thread.next.size(); ++i) {
    const Use& use = thread.next[i];
    Held held;
    held.pin = std::move((**news.pins)[i]);
    EXPECT_EQ(held.pin.tensor(), tensors_[static_cast<size_t>(use.tensor)].id);
    held.access = use.access;
    held.uses = 1;
    customer.held.emplace(use.tensor, std::move(held));
    thread.running.back().push_back(use);
    Compare(customer, use);
  }
  thread.next.clear();
}

void ByteCustomers::Compare(Customer& customer, const Use& use) {
  Held& held = customer.held.at(use.tensor);
  Truth& truth = tensors_[static_cast<size_t>(use.tensor)];
  EXPECT_EQ(held.pin.data().empty(), customer.on_device);
  const absl::Span<std::byte> data = DataOf(held.pin, truth.bytes.size());
  ASSERT_EQ(data.size(), truth.bytes.size());
  ++seen_.uses;
  const bool is_new = held.access == Access::kOverwrite && !held.dirty;
  if (!is_new) {
    EXPECT_TRUE(std::equal(data.begin(), data.end(), truth.bytes.begin()))
        << "t" << use.tensor;
  }
  if (use.access == Access::kRead && !is_new) return;
  const auto value = static_cast<std::byte>(Draw(256));
  if (is_new) std::fill(data.begin(), data.end(), value);
  data[Draw(data.size())] = static_cast<std::byte>(Draw(256));
  truth.bytes.assign(data.begin(), data.end());
  truth.written = true;
  held.dirty = true;
}

void ByteCustomers::End(Customer& customer, Thread& thread) {
  const Operation operation = std::move(thread.running.back());
  thread.running.pop_back();
  for (const Use& use : operation) {
    Compare(customer, use);
    Held& held = customer.held.at(use.tensor);
    if (--held.uses == 0 && held.wanted) EndPin(customer, use.tensor);
  }
}

void ByteCustomers::EndPin(Customer& customer, int tensor) {
  const auto found = customer.held.find(tensor);
  std::erase(customer.late, found->second.pin.token());
  if (found->second.dirty) {
    found->second.pin.Release();
  } else {
    found->second.pin.ReleaseUnchanged();
  }
  customer.held.erase(found);
}

void ByteCustomers::Hear(Customer& customer,
                         const std::vector<uint64_t>& recalls) {
  for (const uint64_t token : recalls) {
    ++seen_.recalls;
    EXPECT_TRUE(customer.recalled.insert(token).second) << "twice " << token;
    switch (customer.answers) {
      case Answers::kAtOnce:
        Answer(customer, token);
        break;
      case Answers::kLate:
        customer.late.push_back(token);
        break;
      case Answers::kNever:
        break;
    }
  }
}

void ByteCustomers::Answer(Customer& customer, uint64_t token) {
  for (auto& [tensor, held] : customer.held) {
    if (held.pin.token() != token) continue;
    if (held.uses == 0) return EndPin(customer, tensor);
    held.wanted = true;
    customer.queue->Keep(token);
    return;
  }
  FAIL() << "a recall of no pin: " << token;
}

void ByteCustomers::Step(Customer& customer) {
  if (!customer.step_open) {
    EXPECT_TRUE(customer.queue->BeginStep(++customer.step).ok());
    customer.step_open = true;
    return;
  }
  const absl::Status status = customer.queue->CommitStep({customer.step});
  EXPECT_TRUE(status.ok() || options_.faults) << status;
  customer.step_open = false;
}

// The queue goes while some of its pins are in use.
void ByteCustomers::Close(Customer& customer) {
  for (Thread& thread : customer.threads) {
    thread.request.reset();
    thread.joined.reset();
    thread.next.clear();
    while (!thread.running.empty()) End(customer, thread);
  }
  for (auto& [tensor, held] : customer.held) {
    if (Draw(2) == 0) continue;
    // What was written is told as such; the rest stays for a while.
    if (held.dirty) {
      held.pin.Release();
    } else {
      left_.emplace_back(tensor, std::move(held));
    }
  }
  for (auto& [tensor, held] : customer.held) {
    if (held.pin.valid() && !held.dirty) held.pin.ReleaseUnchanged();
  }
  customer.held.clear();
  customer.coming.clear();
  customer.late.clear();
  customer.step_open = false;
  customer.queue.reset();
  Open(customer);
}

}  // namespace terrace
