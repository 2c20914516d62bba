#include "runtime/mover/customers.h"

#include <algorithm>

#include "runtime/messages/request_checks.h"

namespace terrace {

Customer& Customers::Add(TierId tier, ClientId client) {
  auto customer = std::make_unique<Customer>();
  customer->id = next_customer_++;
  customer->client = client;
  customer->tier = tier;
  Customer& added = *customer;
  open_.push_back(&added);
  customers_[added.id] = std::move(customer);
  return added;
}

Customer& Customers::Open(Window& window, ClientId client) {
  Customer& customer = Add(window.id(), client);
  customer.port = ports_.OpenQueue(client, customer.id);
  customer.window = &window;
  if (keeper_ != nullptr) {
    keeper_->OnQueue(
        {.id = customer.id, .window = window.room(), .slots = window.slots()});
  }
  return customer;
}

Customer& Customers::OpenBytes(int64_t window_bytes, TierId tier,
                               ClientId client) {
  Customer& customer = Add(tier, client);
  customer.bytes.emplace();
  customer.bytes->window_bytes = window_bytes;
  customer.bytes->port = ports_.OpenBytes(client, customer.id);
  if (keeper_ != nullptr) {
    keeper_->OnQueue({.id = customer.id, .window_bytes = window_bytes});
  }
  return customer;
}

Customer& Customers::RestoreClosed(TierId tier, ClientId client) {
  Customer& customer = Add(tier, client);
  customer.closed = true;
  std::erase(open_, &customer);
  return customer;
}

void Customers::DropWaiting(Customer& customer) {
  for (const auto& [id, group] : customer.waiting) DropWants(group);
  customer.waiting.clear();
  customer.deadlines.clear();
}

void Customers::Close(Customer& customer) {
  if (keeper_ != nullptr) keeper_->OnQueueEnd(customer.id);
  DropWaiting(customer);
  ports_.EndUntaken(customer.ready);
  customer.closed = true;
  std::erase(open_, &customer);
  active_.erase(&customer);
}

void Customers::CloseAll() {
  for (Customer* const customer : open_) {
    DropWaiting(*customer);
    ports_.EndUntaken(customer->ready);
    if (customer->bytes.has_value()) {
      customer->bytes->port->Close();
    } else {
      customer->port->Close();
    }
  }
}

Customer* Customers::Find(int64_t id) const {
  const auto found = customers_.find(id);
  return found == customers_.end() ? nullptr : found->second.get();
}

Customer* Customers::FindOpen(int64_t id) const {
  Customer* const customer = Find(id);
  return customer == nullptr || customer->closed ? nullptr : customer;
}

void Customers::Push(Customer& customer, PushRequest request) {
  Group group;
  group.tag = request.tag;
  group.wants = std::move(request.wants);
  group.deadline = request.deadline;
  Add(customer, std::move(group));
}

void Customers::PushBytes(Customer& customer, PushBytesRequest request) {
  Group group;
  group.tag = request.tag;
  group.wants = std::move(request.wants);
  group.in_use = std::move(request.in_use);
  group.lane = request.lane;
  group.deadline = request.deadline;
  Add(customer, std::move(group));
}

void Customers::Add(Customer& customer, Group group) {
  group.id = NextNumber();
  group.room.number = group.id;
  group.passage.number = PassageNumber(group.id);
  KeepWants(group);
  customer.deadlines.emplace(group.deadline, group.id);
  customer.waiting.emplace(group.id, std::move(group));
  active_.insert(&customer);
}

void Customers::EraseWaiting(Customer& customer, uint64_t group) {
  const auto found = customer.waiting.find(group);
  DropWants(found->second);  // none when it was admitted
  customer.deadlines.erase({found->second.deadline, group});
  customer.waiting.erase(found);
}

void Customers::AddReady(Customer& customer, ReadyGroup ready) {
  if (transcript_ != nullptr) {
    TranscriptLine line;
    line.at = clock_.Now();
    line.event = TranscriptEvent::kReady;
    line.code = ready.grants.status().code();
    line.queue = customer.id;
    line.tag = ready.tag;
    line.cause = static_cast<int>(ready.cause);
    transcript_->push_back(line);
  }
  customer.blocked_since = absl::InfiniteFuture();
  customer.ready.push_back(std::move(ready));
  if (!customer.closed) active_.insert(&customer);
}

void Customers::AddRecall(Customer& customer, uint64_t token) {
  customer.bytes->recalls.push_back(token);
  active_.insert(&customer);
}

void Customers::Fail(Customer& customer, const Group& group,
                     absl::Status status) {
  ReadyGroup ready;
  ready.tag = group.tag;
  ready.grants = std::move(status);
  AddReady(customer, std::move(ready));
}

void Customers::NoteIfEnded(const Customer& customer) {
  if (customer.closed && customer.held_pins == 0 && customer.admitted == 0) {
    ended_.push_back(customer.id);
  }
}

std::vector<int64_t> Customers::Publish(uint64_t processed) {
  for (Customer* const customer : active_) {
    if (customer->bytes.has_value()) {
      ByteShare& bytes = *customer->bytes;
      if (customer->ready.empty() && bytes.recalls.empty()) continue;
      bytes.port->Publish(&customer->ready, &bytes.recalls);
      continue;
    }
    customer->port->Publish(&customer->ready, customer->blocked_by_own_pins,
                            processed, customer->blocked_also);
  }
  std::erase_if(active_, [](const Customer* customer) {
    return customer->waiting.empty() && customer->admitted == 0;
  });
  for (const int64_t id : ended_) customers_.erase(id);
  return std::exchange(ended_, {});
}

absl::Time Customers::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Customer* const customer : active_) {
    if (customer->deadlines.empty()) continue;
    next = std::min(next, customer->deadlines.begin()->first);
  }
  return next;
}

void Customers::Report(int64_t queue, const absl::Status& status) {
  Customer* const hears = FindOpen(queue);
  if (hears != nullptr && hears->step.has_value())
    hears->first_error.Update(status);
}

absl::Status Customers::CheckStep(const Customer& customer,
                                  const StepRequest& request) {
  switch (request.kind) {
    case StepRequest::Kind::kBegin:
      return CheckStepBegins(customer.step);
    case StepRequest::Kind::kCommit:
      return CheckStepEnds(customer.step, request.step);
    case StepRequest::Kind::kAbort:
      break;
  }
  return CheckStepEnds(customer.step, std::nullopt);
}

}  // namespace terrace
