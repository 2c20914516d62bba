// What each message means for the mover's parts.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
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
  const bool closing = core_.closing.begun();
  const auto refuse = [this](const auto& asked) {
    core_.ports.Deliver(asked.id, Closing::Closed());
  };
  std::visit(
      ForEach{
          [&](RegisterRequest& asked) {
            if (closing) return refuse(asked);
            core_.registrar.Register(std::move(asked));
          },
          [&](UnregisterRequest& asked) {
            if (closing) return refuse(asked);
            core_.registrar.Unregister(std::move(asked), core_.inbox->posted());
          },
          [&](OpenRequest& asked) { closing ? refuse(asked) : Open(asked); },
          [&](OpenBytesRequest& asked) {
            closing ? refuse(asked) : core_.byte_admission.Open(asked);
          },
          [&](CloseQueueRequest& asked) { CloseQueue(asked); },
          [&](PushRequest& asked) {
            Customer* const customer = core_.customers.FindOpen(asked.queue);
            if (customer == nullptr || closing) return;
            core_.customers.Push(*customer, std::move(asked));
          },
          [&](PushBytesRequest& asked) {
            Customer* const customer = core_.customers.FindOpen(asked.queue);
            if (customer == nullptr || closing) return;
            core_.customers.PushBytes(*customer, std::move(asked));
          },
          [&](WaitingRequest& asked) {
            for (const uint64_t token : asked.in_use) {
              core_.byte_pins.SetWaiting(token, asked.begins);
            }
          },
          [&](HoldAtMostRequest& asked) {
            core_.byte_pins.HoldAtMost(asked.queue, asked.bytes);
          },
          [&](KeepRequest& asked) { core_.byte_pins.Keep(asked.token); },
          [&](TouchRequest& asked) { core_.byte_admission.Touch(asked); },
          [&](EndPinRequest& asked) {
            EndPin(asked);
            // Who goes on from an image without that ends the pin once more.
            if (core_.keeper != nullptr) core_.keeper->OnPinEnd(asked.token);
          },
          [&](StepRequest& asked) {
            if (closing) return refuse(asked);
            core_.ports.Deliver(asked.id, ChangeStep(asked));
          },
          [&](PrefetchRequest& asked) {
            if (!closing) core_.prefetcher.Hint(asked.tensors);
          },
          [&](StatsRequest& asked) {
            core_.ports.Deliver(asked.id,
                                core_.report().MakeStats(errors_.first()));
          },
      },
      request);
}

void Mover::Hear(OwnerRequest& request) {
  std::visit(
      ForEach{
          [&](GrowRequest& asked) {
            const bool closing = core_.closing.begun();
            if (!closing) core_.dram.Extend(asked.bytes);
            core_.ports.Deliver(asked.id,
                                closing ? Closing::Closed() : absl::OkStatus());
          },
          [&](CloseRequest& asked) { Close(asked); },
          [&](ListRequest& asked) {
            core_.ports.Deliver(asked.id, core_.report().MakePage(asked.after));
          },
          [&](EvictRequest& asked) {
            if (!core_.closing.begun()) return core_.evictions.Begin(asked);
            core_.ports.Deliver(asked.id, Closing::Closed());
          },
          [&](LendRequest& asked) {
            if (!core_.closing.begun()) {
              return core_.lent.Begin(asked, core_.customers.NextNumber());
            }
            core_.ports.Deliver(asked.id, Closing::Closed());
          },
          [&](RestoreRequest& asked) {
            core_.ports.Deliver(asked.id, core_.restoration.Restore(asked));
          },
      },
      request);
}

void Mover::Hear(Event& event) {
  std::visit(ForEach{
                 [&](Sealed& heard) { OnSealed(heard); },
                 [&](Checked& heard) { OnChecked(heard); },
                 [&](Grown& heard) { core_.registrar.On(heard); },
                 [&](Reclaimed& heard) {
                   core_.resting.at(heard.tier).OnReclaimed(heard);
                 },
                 [&](Removed& heard) { core_.resting.OnRemoved(heard); },
             },
             event);
}

void Mover::Open(OpenRequest& request) {
  // One that is late already is told why the last try gave it no room.
  const bool late = core_.clock.Now() >= request.deadline;
  // The room may be waiting for one of them.
  if (core_.opener.Add(std::move(request)) && !late) {
    core_.write_back.RetryFailed();
  }
}

void Mover::CloseQueue(const CloseQueueRequest& request) {
  Customer* const customer = core_.customers.FindOpen(request.queue);
  if (customer == nullptr) return;
  core_.customers.Close(*customer);
  core_.admission.OnClosed(*customer);
  if (customer->bytes.has_value()) {
    core_.byte_admission.OnClosed(*customer);
  } else {
    core_.working.at(customer->tier).windows().Close(*customer->window);
  }
  core_.customers.NoteIfEnded(*customer);
}

void Mover::EndPin(const EndPinRequest& request) {
  const absl::StatusOr<EndedPin> ended =
      core_.pins.End(request.token, request.end);
  if (!ended.ok()) return;  // of no pin: nothing ends
  Customer* const customer = core_.customers.Find(ended->queue);
  TERRACE_CHECK(customer != nullptr);
  --customer->held_pins;
  core_.customers.NoteIfEnded(*customer);
  Tensor& tensor = *ended->tensor;
  core_.byte_admission.OnEnded(request.token, tensor, ended->tier);
  TierResidency& residency = core_.working.at(ended->tier);
  core_.working.OnUsed(tensor);
  if (residency.WindowOf(tensor) == nullptr) core_.read_ahead.OnPinEnded();
  if (ended->published) core_.working.DropBeside(tensor, ended->tier);
  if (ended->dirty && residency.WindowOf(tensor) != nullptr) {
    core_.write_back.OnDirty(tensor);
  }
  const bool drops = ended->drop && tensor.Idle(ended->tier);
  if (drops) residency.Drop(tensor);
  // A copy on another tier that the writer did not replace in the end.
  if (!ended->dirty && tensor.pins() == 0 &&
      core_.working.IsDirtyInWindow(tensor)) {
    core_.write_back.OnDirty(tensor);
  }
  if (!drops) return;
  if (!ended->lost) return;
  Lose(tensor, absl::DataLossError(absl::StrCat(
                   "tensor '", tensor.spec.name,
                   "' was discarded and no lower copy is current")));
}

absl::Status Mover::ChangeStep(const StepRequest& request) {
  Customer* const customer = core_.customers.FindOpen(request.queue);
  if (customer == nullptr) return Closing::Closed();
  const absl::Status wrong = Customers::CheckStep(*customer, request);
  if (!wrong.ok()) return wrong;
  if (request.kind == StepRequest::Kind::kBegin) {
    customer->step = request.step;
    core_.planner.BeginStep(customer->id);
    core_.prefetcher.Watch(customer->id);
    customer->first_error = core_.write_back.TakeUnsaid(customer->id);
    core_.write_back.RetryFailed();
    return absl::OkStatus();
  }
  customer->step.reset();
  absl::Status result = std::exchange(customer->first_error, absl::OkStatus());
  const bool aborts = request.kind == StepRequest::Kind::kAbort;
  if (!result.ok() || aborts) core_.planner.Forget(customer->id);
  return aborts ? absl::OkStatus() : std::move(result);
}

void Mover::Close(CloseRequest& request) {
  if (!core_.closing.Add(std::move(request))) return;
  core_.customers.CloseAll();
  core_.admission.Refuse();
  core_.opener.Refuse(Closing::Closed());
  core_.registrar.Refuse(Closing::Closed());
  core_.evictions.Refuse(Closing::Closed());
  core_.lent.Refuse(Closing::Closed());
  core_.transfers.CancelAll();
  core_.closing.WaitFor(core_.inbox->posted());
}

void Mover::OnSealed(const Sealed& event) {
  Tensor& tensor = core_.transfers.OnSealed(event);
  if (core_.closing.begun() || !core_.table.IsAdmitted(tensor)) {
    return core_.write_back.GiveUpSealed(tensor);
  }
  core_.write_back.OnSealed(tensor, core_.admission.WriterWaits(tensor));
}

void Mover::OnChecked(const Checked& event) {
  const bool matters =
      core_.table.IsAdmitted(core_.transfers.TensorOf(event.transfer));
  core_.transfers.OnChecked(event, /*again=*/!core_.closing.begun(), matters,
                            &turn_.arrivals);
}

}  // namespace terrace
