// What each message means for the mover's parts.
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/mover/mover.h"

namespace terrace {

void Mover::Handle(RegisterRequest& request) {
  if (closing_.begun()) return request.reply->Set(Closing::Closed());
  registrar_.Register(std::move(request));
}

void Mover::Handle(UnregisterRequest& request) {
  if (closing_.begun()) return request.reply->Set(Closing::Closed());
  registrar_.Unregister(std::move(request), inbox_->posted());
}

void Mover::Handle(OpenRequest& request) {
  if (closing_.begun()) return request.reply->Set(Closing::Closed());
  // The room may be waiting for one of them.
  if (opener_.Add(std::move(request))) write_back_.RetryFailed();
}

void Mover::Handle(CloseQueueRequest& request) {
  Customer* const customer = customers_.FindOpen(request.queue);
  if (customer == nullptr) return;
  customers_.Close(*customer);
  admission_.OnClosed(*customer);
  residency_.CloseWindow(*customer->window);
  customers_.NoteIfEnded(*customer);
}

void Mover::Handle(PushRequest& request) {
  Customer* const customer = customers_.FindOpen(request.queue);
  if (customer == nullptr || closing_.begun()) return;
  customers_.Push(*customer, std::move(request));
}

void Mover::Handle(EndPinRequest& request) {
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

void Mover::Handle(StepRequest& request) {
  Customer* const customer = customers_.FindOpen(request.queue);
  if (customer == nullptr || closing_.begun()) {
    return request.reply->Set(Closing::Closed());
  }
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

void Mover::Handle(PrefetchRequest& request) {
  if (!closing_.begun()) prefetcher_.Hint(request.tensors);
}

void Mover::Handle(StatsRequest& request) {
  request.reply->Set(report().MakeStats(first_error_));
}

void Mover::Handle(CloseRequest& request) {
  if (!closing_.Add(std::move(request))) return;
  customers_.CloseAll();
  admission_.Refuse();
  opener_.Refuse(Closing::Closed());
  registrar_.Refuse(Closing::Closed());
  transfers_.CancelAll();
  closing_.WaitFor(inbox_->posted());
}

void Mover::Handle(Sealed& event) {
  Tensor& tensor = transfers_.OnSealed(event);
  if (closing_.begun() || !table_.IsAdmitted(tensor)) {
    return write_back_.GiveUpSealed(tensor);
  }
  write_back_.OnSealed(tensor, admission_.WriterWaits(tensor));
}

void Mover::Handle(Checked& event) {
  const bool matters = table_.IsAdmitted(transfers_.TensorOf(event.transfer));
  transfers_.OnChecked(event, /*again=*/!closing_.begun(), matters,
                       &turn_.arrivals);
  HearArrivals();
}

void Mover::Handle(Grown& event) { registrar_.On(event); }

void Mover::Handle(Reclaimed& event) {
  resting_.at(event.tier).OnReclaimed(event);
}

void Mover::Handle(Removed& event) { resting_.OnRemoved(event); }

}  // namespace terrace
