// What a random run of queues of bytes must explain, and its end: what was
// asked for comes, and what was written is there.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/bytes/byte_customers.h"

namespace terrace {

absl::StatusOr<Pin> ByteCustomers::Have(const Truth& truth, Access access) {
  ByteQueue& queue = *customers_.front().queue;
  const Want want{truth.id, access};
  const auto request = queue.Push({&want, 1}, {}, absl::InfiniteFuture());
  if (!request.ok()) return request.status();
  while (true) {
    auto news = queue.Await(*request, world_.Now() + kTransfers);
    if (!news.ok()) return news.status();
    if (!news->pins.has_value()) continue;  // recalls of what has ended
    if (!news->pins->ok()) return news->pins->status();
    return std::move((*news->pins)->front());
  }
}

void ByteCustomers::WriteAll() {
  for (Truth& truth : tensors_) {
    absl::StatusOr<Pin> pin = Have(truth, Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    for (std::byte& each : truth.bytes)
      each = static_cast<std::byte>(Draw(256));
    std::copy(truth.bytes.begin(), truth.bytes.end(), pin->data().begin());
    truth.written = true;
  }
}

void ByteCustomers::Explain(const absl::Status& status,
                            const Customer& customer, const Thread& thread) {
  const std::vector<Use>& uses = thread.next;
  if (absl::IsResourceExhausted(status)) {
    // Nothing of a device is beyond its budget.
    EXPECT_TRUE(world_.Now() >= thread.deadline || options_.faults ||
                customer.on_device)
        << status;
    return;
  }
  if (absl::IsFailedPrecondition(status)) {
    EXPECT_TRUE(std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return !tensors_[static_cast<size_t>(use.tensor)].written ||
             use.access != Access::kOverwrite;
    })) << status;
    return;
  }
  EXPECT_TRUE(options_.faults) << status;
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsUnavailable(status) ||
              absl::IsDeadlineExceeded(status))
      << status;
}

bool ByteCustomers::IsQuiet() const {
  return std::all_of(
      customers_.begin(), customers_.end(), [](const Customer& customer) {
        return std::all_of(customer.threads.begin(), customer.threads.end(),
                           [](const Thread& thread) {
                             return !thread.request.has_value() &&
                                    thread.running.empty();
                           });
      });
}

std::string ByteCustomers::Describe() const {
  std::string text;
  for (const Customer& customer : customers_) {
    absl::StrAppend(&text, "customer\n");
    for (const auto& [tensor, held] : customer.held) {
      const uint64_t token = held.pin.token();
      absl::StrAppend(&text, "  t", tensor, " of ", SizeOf(tensor), ": pin ",
                      token, ", uses ", held.uses,
                      customer.recalled.contains(token) ? ", recalled" : "",
                      held.wanted ? ", kept\n" : "\n");
    }
    for (const Thread& thread : customer.threads) {
      absl::StrAppend(&text, "  thread: ", thread.running.size(), " run");
      if (thread.request.has_value()) {
        absl::StrAppend(&text, ", request ", *thread.request);
      }
      for (const Use& use : thread.next) {
        absl::StrAppend(&text, " t", use.tensor, " of ", SizeOf(use.tensor));
      }
      absl::StrAppend(&text, "\n");
    }
  }
  return text;
}

void ByteCustomers::Drain() {
  world_.ClearFaults();
  left_.clear();
  for (Customer& customer : customers_) {
    for (Thread& thread : customer.threads) {
      if (!thread.joined.has_value()) continue;
      thread.joined.reset();
      customer.queue->EndWaiting(thread.waiting_with);
    }
  }
  const absl::Time late = world_.Now() + 2 * kTransfers;
  while (!IsQuiet() && !testing::Test::HasFailure()) {
    ASSERT_LT(world_.Now(), late) << Describe();
    for (Customer& customer : customers_) {
      for (Thread& thread : customer.threads) {
        if (thread.request.has_value()) {
          Await(customer, thread);
        } else if (!thread.running.empty()) {
          End(customer, thread);
        }
      }
      auto recalls = customer.queue->AwaitRecalls(world_.Now());
      if (recalls.ok()) Hear(customer, *recalls);
      for (const uint64_t token : std::exchange(customer.late, {})) {
        Answer(customer, token);
      }
    }
    world_.PassToEvent(absl::Milliseconds(1));
  }
  for (Customer& customer : customers_) {
    while (!customer.held.empty()) {
      EndPin(customer, customer.held.begin()->first);
    }
  }
  // Each tensor as the map has it.
  for (const Truth& truth : tensors_) {
    if (!truth.written || testing::Test::HasFailure()) continue;
    absl::StatusOr<Pin> pin = Have(truth, Access::kRead);
    if (!pin.ok()) {
      EXPECT_TRUE(options_.faults && absl::IsDataLoss(pin.status()))
          << pin.status();
      continue;
    }
    EXPECT_EQ(pin->data(), absl::MakeSpan(truth.bytes));
  }
  // What is beyond the budget goes once it is written below.
  const absl::Time written = world_.Now() + 2 * kTransfers;
  while (world_.runtime().GetStats().bytes.beyond_bytes > 0 &&
         world_.Now() < written) {
    world_.PassToEvent(absl::Milliseconds(1));
  }
}

}  // namespace terrace
