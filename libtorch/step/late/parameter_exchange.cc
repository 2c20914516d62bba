#include "libtorch/step/late/parameter_exchange.h"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads/own_thread.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/step/late/refused_storage.h"
#include "libtorch/step/late/update_net.h"

namespace terrace {
namespace {

// So many transfers are under way, each with a buffer of at most one large
// parameter.
constexpr size_t kUnderWay = 4;

}  // namespace

ParameterExchange::ParameterExchange(
    c10::intrusive_ptr<c10d::ProcessGroup> group, int rank,
    std::vector<ExchangedParameter> parameters)
    : group_(std::move(group)),
      rank_(rank),
      parameters_(std::move(parameters)),
      pending_(
          std::make_shared<PendingStorages>("optimizer.flush() on all ranks")),
      packs_(PacksOf(parameters_)) {}

absl::StatusOr<std::unique_ptr<ParameterExchange>> ParameterExchange::Begin(
    c10::intrusive_ptr<c10d::ProcessGroup> group, int rank,
    std::vector<ExchangedParameter> parameters) {
  for (const ExchangedParameter& each : parameters) {
    if (!each.tensor.has_storage() || !each.tensor.device().is_cpu()) {
      return absl::UnimplementedError(
          absl::StrCat("parameter '", each.name, "' is not in CPU memory"));
    }
    if (each.tensor.is_inference()) {
      return absl::UnimplementedError(
          absl::StrCat("parameter '", each.name,
                       "' is an inference tensor: overlap=True "
                       "cannot tell a graph that it is written"));
    }
    if (each.owner < 0 || each.owner >= group->getSize()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", each.name, "' is of rank ", each.owner,
                       " of ", group->getSize()));
    }
  }
  std::unique_ptr<ParameterExchange> exchange(
      new ParameterExchange(std::move(group), rank, std::move(parameters)));
  exchange->Listen();
  exchange->Run();
  return exchange;
}

ParameterExchange::~ParameterExchange() {
  Wait().IgnoreError();
  pending_->GiveUp();
  UpdateNet::Get().Erase(*pending_);
  TakeRefusalsBack(*pending_);
}

void ParameterExchange::Listen() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ExchangedParameter& each = parameters_[i];
    if (each.tensor.nbytes() == 0) continue;
    const void* const storage = each.tensor.storage().unsafeGetStorageImpl();
    const int place = static_cast<int>(i);
    if (each.owner == rank_) {
      pending_->AddSent(place, each.name, storage);
    } else {
      pending_->Add(place, each.name, storage, nullptr, nullptr);
      // A graph that still holds the old values must notice; those of this
      // rank's own parameters are counted as their updates begin.
      each.tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
  UpdateNet::Get().Insert(pending_);
}

void ParameterExchange::Run() {
  try {
    thread_ = StartThread("terrace-ranks", [this] {
      status_ = Exchange();
      pending_->End(status_);
    });
  } catch (const std::system_error&) {  // the system has no thread for it
    status_ = Exchange();
    pending_->End(status_);
  }
}

absl::Status ParameterExchange::Wait() {
  if (thread_.joinable()) {
    const OperationPins::Waiting waiting;
    pending_->AwaitEnd();
    thread_.join();
  }
  return status_;
}

absl::Status ParameterExchange::Retry() {
  if (Wait().ok() || !absl::IsAborted(status_)) return status_;
  UpdateNet::Get().BeginAgain(*pending_);
  status_ = Exchange();
  if (status_.ok()) TakeRefusalsBack(*pending_);
  pending_->End(status_);
  return status_;
}

std::vector<int> ParameterExchange::order() const {
  std::vector<int> order = pending_->order();
  std::vector<bool> is_used(parameters_.size());
  for (const int index : order) is_used[static_cast<size_t>(index)] = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_used[i]) order.push_back(static_cast<int>(i));
  }
  return order;
}

absl::Status ParameterExchange::Exchange() {
  // An operation of this thread would wait for what the thread brings.
  const at::DisableRecordFunctionGuard unseen;
  const at::NoGradGuard without_graph;
  failed_rank_ = -1;
  absl::Status status = Guarded([this] { return ExchangePacks(); });
  if (status.code() == absl::StatusCode::kInternal) {  // what LibTorch threw
    status = absl::UnavailableError(status.message());
  }
  return status;
}

absl::Status ParameterExchange::ExchangePacks() {
  std::deque<ParameterTransfer> under_way;
  const auto finish = [&] {
    Finish(under_way.front());
    under_way.pop_front();
  };
  try {
    for (ParameterPack& pack : packs_) {
      if (!pack.is_missing) continue;
      if (under_way.size() == kUnderWay) finish();
      absl::Status updated;
      if (pack.owner == rank_) {
        // What others wait for is not kept back by an update of this rank.
        while (!under_way.empty() && !IsUpdated(pack)) finish();
        updated = AwaitUpdates(pack);
      }
      under_way.emplace_back(*group_, rank_, parameters_, pack).Begin(updated);
      while (!under_way.empty() && under_way.front().HasEnded()) finish();
    }
    while (!under_way.empty()) finish();
  } catch (...) {
    for (ParameterTransfer& each : under_way) each.Abandon();
    throw;
  }
  return AgreeOnMissing();
}

absl::Status ParameterExchange::AwaitUpdates(const ParameterPack& pack) const {
  absl::Status status;
  for (const int index : pack.parameters) {
    const at::Tensor& tensor = TensorOf(index);
    const PendingStorages::Operand operand = {
        tensor.storage().unsafeGetStorageImpl(), /*is_written=*/false};
    for (const auto& each : UpdateNet::Get().pending()) {
      if (each == pending_) continue;
      each->Await(
          {&operand, 1},
          [&](size_t, const absl::Status& why) {
            status.Update(why);
            return nullptr;
          },
          PendingStorages::Waiter::kOfLibrary);
    }
  }
  return status;
}

bool ParameterExchange::IsUpdated(const ParameterPack& pack) const {
  const UpdateNet::List pending = UpdateNet::Get().pending();
  return std::all_of(
      pack.parameters.begin(), pack.parameters.end(), [&](int index) {
        const at::Tensor& tensor = TensorOf(index);
        return std::all_of(
            pending.begin(), pending.end(), [&](const auto& each) {
              return each == pending_ ||
                     each->IsFree({tensor.storage().unsafeGetStorageImpl(),
                                   /*is_written=*/false});
            });
      });
}

void ParameterExchange::Finish(ParameterTransfer& transfer) {
  transfer.End();
  ParameterPack& pack = transfer.pack();
  if (!pack.failure.empty()) return;
  (pack.owner == rank_ ? bytes_sent_ : bytes_received_) += pack.bytes;
  // What was sent may be written once all ranks have it.
  if (pack.owner != rank_) pending_->SetStepped(pack.parameters);
}

absl::Status ParameterExchange::AgreeOnMissing() {
  at::Tensor missing = at::zeros({static_cast<int64_t>(packs_.size())},
                                 at::TensorOptions(at::kInt));
  auto* const ranks = missing.data_ptr<int32_t>();
  for (size_t i = 0; i < packs_.size(); ++i) {
    ranks[i] = 1 + packs_[i].failed_rank;
  }
  std::vector<at::Tensor> tensors = {missing};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  if (!packs_.empty()) group_->allreduce(tensors, options)->wait();
  std::string why;
  for (size_t i = 0; i < packs_.size(); ++i) {
    ParameterPack& pack = packs_[i];
    pack.is_missing = ranks[i] != 0;
    if (!pack.is_missing) {
      pending_->SetStepped(pack.parameters);
      continue;
    }
    if (failed_rank_ >= 0) continue;
    failed_rank_ = ranks[i] - 1;
    if (pack.failed_rank == failed_rank_) why = pack.failure;
  }
  if (failed_rank_ < 0) return absl::OkStatus();
  // Another rank that could not take it has not said why.
  return absl::AbortedError(why.empty() ? "it could not take a parameter"
                                        : why);
}

}  // namespace terrace
