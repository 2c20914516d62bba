#include "libtorch/python/ranks/exchange_binding.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

Said ToSaid(const absl::Status& status) {
  return {static_cast<int64_t>(status.code()), std::string(status.message())};
}

}  // namespace

ExchangeBinding::~ExchangeBinding() {
  // The threads and locks are the parent's.
  if (!process_.IsCurrent()) static_cast<void>(exchange_.release());
}

Said ExchangeBinding::Begin(const std::string& group, int64_t rank,
                            const std::vector<at::Tensor>& parameters,
                            const std::vector<std::string>& names,
                            const std::vector<int64_t>& owners) {
  if (!process_.IsCurrent()) {
    return ToSaid(absl::FailedPreconditionError(
        "a forked child cannot use its parent's process group"));
  }
  if (names.size() != parameters.size() || owners.size() != parameters.size()) {
    return ToSaid(absl::InvalidArgumentError(
        absl::StrCat(parameters.size(), " parameters, ", names.size(),
                     " names and ", owners.size(), " owners")));
  }
  MutexLock lock(mutex_);
  Drop();
  std::vector<ExchangedParameter> exchanged;
  for (size_t i = 0; i < parameters.size(); ++i) {
    exchanged.push_back({.name = names[i],
                         .tensor = parameters[i],
                         .owner = static_cast<int>(owners[i])});
  }
  return ToSaid(Guarded([&]() -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(
        exchange_,
        ParameterExchange::Begin(c10d::resolve_process_group(group),
                                 static_cast<int>(rank), std::move(exchanged)));
    return absl::OkStatus();
  }));
}

Said ExchangeBinding::Wait() {
  if (!process_.IsCurrent()) return ToSaid(absl::OkStatus());
  MutexLock lock(mutex_);
  return ToSaid(exchange_ == nullptr ? absl::OkStatus() : exchange_->Wait());
}

Said ExchangeBinding::Retry() {
  if (!process_.IsCurrent()) return ToSaid(absl::OkStatus());
  MutexLock lock(mutex_);
  return ToSaid(exchange_ == nullptr ? absl::OkStatus() : exchange_->Retry());
}

void ExchangeBinding::End() {
  if (!process_.IsCurrent()) return;
  MutexLock lock(mutex_);
  Drop();
}

void ExchangeBinding::Drop() {
  if (exchange_ == nullptr) return;
  exchange_->Wait().IgnoreError();
  order_.clear();
  for (const int index : exchange_->order()) order_.push_back(index);
  bytes_sent_ += exchange_->bytes_sent();
  bytes_received_ += exchange_->bytes_received();
  exchange_.reset();
}

int64_t ExchangeBinding::FailedRank() {
  if (!process_.IsCurrent()) return -1;
  MutexLock lock(mutex_);
  return exchange_ == nullptr ? -1 : exchange_->failed_rank();
}

std::vector<int64_t> ExchangeBinding::Order() {
  if (!process_.IsCurrent()) return {};
  MutexLock lock(mutex_);
  return order_;
}

std::tuple<int64_t, int64_t> ExchangeBinding::Bytes() {
  if (!process_.IsCurrent()) return {0, 0};
  MutexLock lock(mutex_);
  if (exchange_ == nullptr) return {bytes_sent_, bytes_received_};
  exchange_->Wait().IgnoreError();
  return {bytes_sent_ + exchange_->bytes_sent(),
          bytes_received_ + exchange_->bytes_received()};
}

}  // namespace terrace
