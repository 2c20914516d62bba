#include "examples/infer_gpt/weights.h"

#include <cstring>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace infer_gpt {
namespace {

using terrace::Hook;

constexpr absl::Duration kTimeout = absl::Hours(1);

// Of a weight that is below, in blocks.
class LeasedElements final : public terrace::CheckpointElements {
 public:
  LeasedElements(Hook& hook, at::Tensor tensor)
      : hook_(hook), tensor_(std::move(tensor)) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> target) override {
    const auto lease = hook_.MakeLease(tensor_, Hook::Access::kRead);
    if (!lease.ok()) return lease.status();
    std::memcpy(target.data(), lease->data().data() + offset, target.size());
    return absl::OkStatus();
  }

  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> source) override {
    const auto lease = hook_.MakeLease(tensor_, Hook::Access::kWrite);
    if (!lease.ok()) return lease.status();
    std::memcpy(lease->data().data() + offset, source.data(), source.size());
    return absl::OkStatus();
  }

 private:
  Hook& hook_;
  const at::Tensor tensor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Make(
    const Flags& flags, terrace::Checkpoint* checkpoint) {
  std::unique_ptr<Weights> weights(new Weights(flags));
  absl::Status status;
  if (!flags.in_memory) status = weights->MakeBelow();
  if (status.ok()) status = weights->MakeModel(checkpoint == nullptr);
  if (status.ok() && checkpoint != nullptr) {
    status = weights->Load(*checkpoint);
  }
  if (!status.ok()) return status;
  weights->before_ = weights->Count();
  return weights;
}

Weights::~Weights() { Close().IgnoreError(); }

absl::Status Weights::MakeBelow() {
  const auto plan = PlanWeights(flags_.shape, flags_.dtype, flags_.budget);
  if (!plan.ok()) return plan.status();
  plan_ = *plan;
  terrace::Options options;
  options.host_budget_bytes = plan_.budget_bytes;
  options.paths = flags_.nvme_paths;
  auto runtime = terrace::Runtime::Create(options);
  if (!runtime.ok()) {
    return absl::Status(
        runtime.status().code(),
        absl::StrCat("--nvme-path: ", runtime.status().message()));
  }
  runtime_ = *std::move(runtime);
  auto hook = Hook::Create(*runtime_, {.window_bytes = plan_.window_bytes});
  if (!hook.ok()) return hook.status();
  hook_ = *std::move(hook);
  return absl::OkStatus();
}

absl::Status Weights::MakeModel(bool is_random) {
  absl::Status status;
  const std::optional<uint64_t> seed =
      is_random ? std::optional(flags_.seed) : std::nullopt;
  model_ = std::make_unique<train_gpt::Gpt>(
      flags_.shape, flags_.dtype, seed,
      [&](const train_gpt::Gpt::Parameter& made) {
        if (hook_ == nullptr || !status.ok()) return;
        status = hook_->Manage({{made.name, made.tensor}});
      });
  return status;
}

absl::Status Weights::Load(terrace::Checkpoint& checkpoint) {
  std::list<LeasedElements> below;
  std::vector<terrace::CheckpointTensor> tensors;
  for (const train_gpt::Gpt::Parameter& parameter : model_->parameters()) {
    terrace::CheckpointTensor tensor = {
        .name = parameter.name,
        .dtype = train_gpt::DTypeOf(flags_.dtype),
        .shape = parameter.tensor.sizes().vec()};
    if (hook_ == nullptr) {
      tensor.data = parameter.tensor.data_ptr();
    } else {
      tensor.elements = &below.emplace_back(*hook_, parameter.tensor);
    }
    tensors.push_back(std::move(tensor));
  }
  return checkpoint.Load(tensors, nullptr, absl::Now() + kTimeout);
}

void Weights::BeginPass() {
  if (hook_ != nullptr) hook_->BeginStep();
}

Weights::Moved Weights::Count() const {
  Moved moved;
  if (hook_ == nullptr) return moved;
  const terrace::HookStats hook = hook_->stats();
  const terrace::Stats runtime = runtime_->GetStats();
  for (const terrace::TierStats& path : runtime.paths()) {
    moved.bytes_read += path.traffic.bytes_read;
    moved.bytes_written += path.traffic.bytes_written;
  }
  moved.fetches = hook.fetches;
  moved.fetches_ahead = hook.fetches_ahead;
  moved.memory_peak_bytes = runtime.host.peak_bytes;
  moved.blocked_seconds = absl::ToDoubleSeconds(hook.blocked);
  return moved;
}

Weights::Moved Weights::moved() const {
  Moved moved = Count();
  moved.bytes_read -= before_.bytes_read;
  moved.bytes_written -= before_.bytes_written;
  moved.fetches -= before_.fetches;
  moved.fetches_ahead -= before_.fetches_ahead;
  moved.blocked_seconds -= before_.blocked_seconds;
  return moved;
}

absl::Status Weights::Close() {
  if (hook_ == nullptr) return absl::OkStatus();
  // They need not come back into memory for that.
  absl::Status status = hook_->Close(Hook::AtClose::kRefuse);
  hook_.reset();
  status.Update(runtime_->Close(absl::Now() + kTimeout));
  runtime_.reset();
  return status;
}

}  // namespace infer_gpt
