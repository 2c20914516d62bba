#include "libtorch/step/late/late_updates.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/hook/held_bytes.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/step/late/refused_storage.h"
#include "libtorch/step/late/update_net.h"
#include "libtorch/tensor_check.h"

namespace terrace {

LateUpdates::LateUpdates(OffloadedOptimizer& optimizer, LateArguments arguments)
    : optimizer_(optimizer),
      arguments_(std::move(arguments)),
      pending_(std::make_shared<PendingStorages>(arguments_.retry)) {}

absl::StatusOr<std::unique_ptr<LateUpdates>> LateUpdates::Begin(
    OffloadedOptimizer& optimizer, LateArguments arguments) {
  std::unique_ptr<LateUpdates> updates(
      new LateUpdates(optimizer, std::move(arguments)));
  updates->Collect();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<LateStep> step,
                           updates->Start(absl::InfiniteFuture()));
  if (optimizer.last_report().skipped) return nullptr;
  updates->step_ = std::move(step);
  updates->Listen();
  updates->Run();
  return updates;
}

LateUpdates::~LateUpdates() {
  RunHere();
  Wait().IgnoreError();
  pending_->GiveUp();
  UpdateNet::Get().Erase(*pending_);
  TakeRefusalsBack(*pending_);
}

absl::StatusOr<std::unique_ptr<LateStep>> LateUpdates::Start(
    absl::Time deadline) {
  StepArguments step = {.loss_scale = arguments_.loss_scale,
                        .groups = arguments_.groups,
                        .max_gradient_norm = arguments_.max_gradient_norm,
                        .skip_nonfinite = arguments_.skip_nonfinite};
  // A step that is tried again knows its norm.
  const absl::Span<const GradientData> everything =
      std::exchange(arguments_.norm_gradients, {});
  if (!everything.empty()) step.norm_gradients = everything;
  return optimizer_.StartLate(
      step, arguments_.data, arguments_.order,
      std::min(deadline, absl::Now() + arguments_.patience));
}

void LateUpdates::Collect() {
  for (LateParameter& each : arguments_.parameters) {
    each.values = each.parameter.variable_data();
    // A hook names a storage after the first of the tensors that share it.
    const bool has_all = each.values.nbytes() == each.values.storage().nbytes();
    std::string name = has_all ? OffloadedName(each.values) : "";
    if (!name.empty()) each.name = std::move(name);
    const void* const storage = each.values.storage().unsafeGetStorageImpl();
    const void* read = nullptr;
    std::shared_ptr<const void> held;
    if (each.gradient.defined()) {
      read = each.gradient.storage().unsafeGetStorageImpl();
      held = std::make_shared<at::Tensor>(std::move(each.gradient));
      each.gradient = at::Tensor();
    }
    pending_->Add(each.place, each.name, storage, read, std::move(held));
    if (each.in_order.defined()) copied_[each.place] = &each;
  }
}

void LateUpdates::Listen() {
  // Updates write the parameters behind autograd's back, and a graph that still
  // holds the old values must notice.
  for (const LateParameter& each : arguments_.parameters) {
    each.parameter.unsafeGetTensorImpl()->bump_version();
  }
  UpdateNet::Get().Insert(pending_);
}

void LateUpdates::Run() {
  try {
    thread_ = StartThread("terrace-late", [this, step = step_.get()] {
      status_ = Drive(*step);
      pending_->End(status_);
    });
  } catch (const std::system_error&) {  // the system has no thread for it
    RunHere();
  }
}

void LateUpdates::RunHere() {
  if (step_ == nullptr || thread_.joinable() || pending_->has_ended()) return;
  status_ = Drive(*step_);
  pending_->End(status_);
}

absl::Status LateUpdates::Drive(LateStep& step) {
  // An operation of this thread would wait for the step that the thread drives.
  // Offloaded tensors are held without operations.
  const at::DisableRecordFunctionGuard unseen;
  // A thread that wants a parameter says so and then wakes the step, as the end
  // of each update does. Both are looked at after Advance, which may take a
  // wake, and before Wait, which a wake in between ends at once: so neither is
  // missed.
  pending_->SetWake([&step] { step.Wake(); });
  const absl::Cleanup without_wake = [this] { pending_->SetWake(nullptr); };
  while (!step.Advance()) {
    FollowStepped(step);
    if (HastenWanted(step)) continue;
    step.Wait(absl::InfiniteFuture());
    HastenWanted(step);
  }
  FollowStepped(step);
  TERRACE_RETURN_IF_ERROR(step.result());
  is_stepped_ = true;
  step_number_ = optimizer_.step();
  return Finish();
}

bool LateUpdates::HastenWanted(LateStep& step) {
  std::vector<int> wanted;
  pending_->TakeWanted(&wanted);
  for (const int parameter : wanted) step.Hasten(parameter);
  return !wanted.empty();
}

void LateUpdates::FollowStepped(LateStep& step) {
  std::vector<int> stepped;
  step.TakeStepped(&stepped);
  const auto is_copied = [this](int place) {
    const auto found = copied_.find(place);
    if (found == copied_.end()) return false;
    // A copy that fails is tried again at the end of the step.
    if (!CopyBack(*found->second).ok()) unreturned_.push_back(found->second);
    return true;
  };
  std::erase_if(stepped, is_copied);
  SetStepped(stepped);
}

void LateUpdates::SetStepped(absl::Span<const int> places) {
  if (arguments_.offloaded != nullptr) {
    for (const int place : places) {  // pending_ still holds the gradients
      arguments_.offloaded->Drop(
          arguments_.data[static_cast<size_t>(place)].gradient);
    }
  }
  pending_->SetStepped(places);
}

absl::Status LateUpdates::CopyBack() {
  absl::Status first;
  std::erase_if(unreturned_, [&](LateParameter* parameter) {
    const absl::Status status = CopyBack(*parameter);
    first.Update(status);
    return status.ok();
  });
  return first;
}

absl::Status LateUpdates::CopyBack(LateParameter& parameter) {
  auto held =
      HeldBytes::Hold(*parameter.values.storage().unsafeGetStorageImpl(),
                      {.is_written = true, .is_beside = true});
  absl::Status status = held.status();
  if (status.ok()) {
    status = Guarded(c10::kCPU, [&] {
      const at::NoGradGuard without_graph;
      // The values have a version counter of their own; the parameter's has
      // counted this write already.
      parameter.values.copy_(parameter.in_order);
    });
  }
  if (!status.ok()) {
    return Reworded(status, absl::StrCat("'", parameter.name,
                                         "' was stepped and could not be given "
                                         "its new value: ",
                                         status.message()));
  }
  parameter.in_order.reset();
  SetStepped({parameter.place});
  return status;
}

absl::Status LateUpdates::Finish() {
  TakeRefusalsBack(*pending_);
  return CopyBack();
}

absl::Status LateUpdates::Wait() {
  if (thread_.joinable()) {
    // The updates may need the room of what this thread has.
    const OperationPins::Waiting waiting;
    pending_->AwaitEnd();
    thread_.join();
    static_cast<void>(pending_->TakeGarbage());
  }
  return status_;
}

bool LateUpdates::AwaitEnd(absl::Time deadline) {
  return !thread_.joinable() || pending_->AwaitEndUntil(deadline);
}

absl::Status LateUpdates::Retry(absl::Time deadline) {
  // Lost data stays lost, so that DataLoss is not tried again.
  if (Wait().ok() || absl::IsDataLoss(status_)) return status_;
  UpdateNet::Get().BeginAgain(*pending_);
  if (is_stepped()) {
    // An operation of this thread would wait for the step that it finishes.
    const at::DisableRecordFunctionGuard unseen;
    status_ = Finish();
  } else {
    auto step = Start(deadline);
    status_ = step.ok() ? Drive(**step) : step.status();
  }
  pending_->End(status_);
  static_cast<void>(pending_->TakeGarbage());
  return status_;
}

std::vector<int> LateUpdates::order() const {
  std::vector<int> order = pending_->order();
  const absl::flat_hash_set<int> used(order.begin(), order.end());
  for (const int place : arguments_.order) {
    if (!used.contains(place)) order.push_back(place);
  }
  return order;
}

}  // namespace terrace
