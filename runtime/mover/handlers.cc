// What each message means for the mover's parts.
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/mover/mover.h"

namespace terrace {

namespace {

// A visitor of one function for each alternative.
template <typename... Functions>
struct ForEach : Functions... {
  using Functions::operator()...;
};

}  // namespace

void Mover::Hear(Request& request) {
  const bool closing = closing_.begun();
  const auto refuse = [](auto& asked) { asked.reply->Set(Closing::Closed()); };
  std::visit(
      ForEach{
          [&](RegisterRequest& asked) {
            if (closing) return refuse(asked);
            registrar_.Register(std::move(asked));
          },
          [&](UnregisterRequest& asked) {
            if (closing) return refuse(asked);
            registrar_.Unregister(std::move(asked), inbox_->posted());
          },
          [&](OpenRequest& asked) { closing ? refuse(asked) : Open(asked); },
          [&](CloseQueueRequest& asked) { CloseQueue(asked); },
          [&](PushRequest& asked) {
            Customer* const customer = customers_.FindOpen(asked.queue);
            if (customer == nullptr || closing) return;
            customers_.Push(*customer, std::move(asked));
          },
          [&](EndPinRequest& asked) { EndPin(asked); },
          [&](StepRequest& asked) {
            closing ? refuse(asked) : ChangeStep(asked);
          },
          [&](PrefetchRequest& asked) {
            if (!closing) prefetcher_.Hint(asked.tensors);
          },
          [&](StatsRequest& asked) {
            asked.reply->Set(report().MakeStats(first_error_));
          },
          [&](CloseRequest& asked) { Close(asked); },
      },
      request);
}

void Mover::Hear(Event& event) {
  std::visit(
      ForEach{
          [&](Sealed& heard) { OnSealed(heard); },
          [&](Checked& heard) { OnChecked(heard); },
          [&](Grown& heard) { registrar_.On(heard); },
          [&](Reclaimed& heard) { resting_.at(heard.tier).OnReclaimed(heard); },
          [&](Removed& heard) { resting_.OnRemoved(heard); },
      },
      event);
}

void Mover::Open(OpenRequest& request) {
  // The room may be waiting for one of them.
  if (opener_.Add(std::move(request))) write_back_.RetryFailed();
}

void Mover::CloseQueue(const CloseQueueRequest& request) {
  Customer* const customer = customers_.FindOpen(request.queue);
  if (customer == nullptr) return;
  customers_.Close(*customer);
  admission_.OnClosed(*customer);
  residency_.windows().Close(*customer->window);
  customers_.NoteIfEnded(*customer);
}

void Mover::EndPin(const EndPinRequest& request) {
  const absl::StatusOr<EndedPin> ended = pins_.End(request.token, request.end);
  if (!ended.ok()) return;  // of no pin: nothing ends
  Customer* const customer = customers_.Find(ended->queue);
  TERRACE_CHECK(customer != nullptr);
  --customer->held_pins;
  customers_.NoteIfEnded(*customer);
  Tensor& tensor = *ended->tensor;
  if (ended->dirty && residency_.WindowOf(tensor) != nullptr) {
    write_back_.OnDirty(tensor);
  }
  if (!ended->drop || !tensor.Idle(kDram)) return;
  residency_.Drop(tensor);
  if (!ended->lost) return;
  Lose(tensor, absl::DataLossError(absl::StrCat(
                   "tensor '", tensor.spec.name,
                   "' was discarded and no lower copy is current")));
}

void Mover::ChangeStep(const StepRequest& request) {
  Customer* const customer = customers_.FindOpen(request.queue);
  if (customer == nullptr) return request.reply->Set(Closing::Closed());
  const absl::Status wrong = Customers::CheckStep(*customer, request);
  if (!wrong.ok()) return request.reply->Set(wrong);
  if (request.kind == StepRequest::Kind::kBegin) {
    customer->step_open = true;
    customer->step = request.step;
    planner_.BeginStep(customer->id);
    customer->first_error = write_back_.TakeUnsaid(customer->id);
    write_back_.RetryFailed();
    return request.reply->Set(absl::OkStatus());
  }
  customer->step_open = false;
  absl::Status result = std::exchange(customer->first_error, absl::OkStatus());
  const bool aborts = request.kind == StepRequest::Kind::kAbort;
  if (!result.ok() || aborts) planner_.Forget(customer->id);
  request.reply->Set(aborts ? absl::OkStatus() : std::move(result));
}

void Mover::Close(CloseRequest& request) {
  if (!closing_.Add(std::move(request))) return;
  customers_.CloseAll();
  admission_.Refuse();
  opener_.Refuse(Closing::Closed());
  registrar_.Refuse(Closing::Closed());
  transfers_.CancelAll();
  closing_.WaitFor(inbox_->posted());
}

void Mover::OnSealed(const Sealed& event) {
  Tensor& tensor = transfers_.OnSealed(event);
  if (closing_.begun() || !table_.IsAdmitted(tensor)) {
    return write_back_.GiveUpSealed(tensor);
  }
  write_back_.OnSealed(tensor, admission_.WriterWaits(tensor));
}

void Mover::OnChecked(const Checked& event) {
  const bool matters = table_.IsAdmitted(transfers_.TensorOf(event.transfer));
  transfers_.OnChecked(event, /*again=*/!closing_.begun(), matters,
                       &turn_.arrivals);
}

}  // namespace terrace
