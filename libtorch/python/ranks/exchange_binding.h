// torch.classes.terrace.Exchange: the parameters of late steps on their way
// between the ranks of a process group (libtorch/step/late/parameter_exchange),
// one step after another. A forked child has none of them.
//
// Thread-safe: one call at a time runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/step/late/parameter_exchange.h"

namespace terrace {

// How a call ended: absl's code, 0 for OK, and its message.
using Said = std::tuple<int64_t, std::string>;

class ExchangeBinding final : public ::torch::CustomClassHolder {
 public:
  ~ExchangeBinding() override;

  // Begins the exchange of these parameters, in one order on all ranks, each
  // updated by its owner. `group` names the process group, which nothing else
  // uses, and in which this process has the number `rank`. What is missing of
  // the exchange before is given up.
  Said Begin(const std::string& group, int64_t rank,
             const std::vector<at::Tensor>& parameters,
             const std::vector<std::string>& names,
             const std::vector<int64_t>& owners);
  // Waits for the exchange. Aborted: a rank could not update a parameter;
  // Unavailable or ResourceExhausted: the group has failed. Further calls
  // answer the same.
  Said Wait();
  // Exchanges what is missing, after Aborted.
  Said Retry();
  // Waits, and gives up what is missing.
  void End();

  // The rank that failed, after Aborted.
  int64_t FailedRank();
  // Indices of the parameters of the last exchange that ended, in the order in
  // which operations took them.
  std::vector<int64_t> Order();
  // Bytes sent and received in all. Waits for the exchange.
  std::tuple<int64_t, int64_t> Bytes();

 private:
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  Mutex mutex_;
  std::unique_ptr<ParameterExchange> exchange_;
  std::vector<int64_t> order_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_received_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
