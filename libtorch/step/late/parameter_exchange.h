// The parameters of one late step on their way between ranks that share the
// state. Each rank updates the parameters of its share (late_updates.h); a
// thread of this object broadcasts every parameter from its owner, once it is
// updated there, to all other ranks.
//
//   auto exchange = ParameterExchange::Begin(group, rank,
//   std::move(parameters));
//   ...                                  // operations wait by themselves
//   status = (*exchange)->Wait();
//   if (absl::IsAborted(status)) status = (*exchange)->Retry();
//
// All ranks of the group begin the same exchange, with the parameters in one
// order, and only this thread uses the group: so collectives come in one order
// everywhere, whatever operations take first on each rank. The thread waits
// for updates of its own rank and for transfers that have begun, never for an
// operation.
//
// An operation that takes a parameter of another rank waits until it has come;
// one that writes a parameter of this rank waits until all have been sent.
// Where an update failed, its owner says so in place of the value, and all
// ranks know at the end which parameters are missing: Wait returns Aborted
// then, operations that take these are refused, and a Retry that all ranks make
// exchanges them once they are updated. After Unavailable or ResourceExhausted
// the group has failed, or this rank has left it, and a Retry returns the same.
//
// Thread-compatible. Messages name ranks by their numbers in the group.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/step/late/parameter_transfer.h"
#include "libtorch/step/late/pending_storages.h"

namespace c10d {
class ProcessGroup;
}

namespace terrace {

class ParameterExchange {
 public:
  static absl::StatusOr<std::unique_ptr<ParameterExchange>> Begin(
      c10::intrusive_ptr<c10d::ProcessGroup> group, int rank,
      std::vector<ExchangedParameter> parameters);
  // Waits for the thread; parameters that are missing are given up.
  ~ParameterExchange();
  ParameterExchange(const ParameterExchange&) = delete;
  ParameterExchange& operator=(const ParameterExchange&) = delete;

  // Blocks until the exchange has ended. Further calls return the same.
  absl::Status Wait();
  // Exchanges what is missing, on the calling thread.
  absl::Status Retry();

  // The rank that failed, where Wait returned Aborted.
  int failed_rank() const { return failed_rank_; }
  // Returns, once the exchange has ended, the parameters by their indices in
  // the order in which operations took them, then the others.
  std::vector<int> order() const;
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

 private:
  ParameterExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, int rank,
                    std::vector<ExchangedParameter> parameters);

  const at::Tensor& TensorOf(int index) const {
    return parameters_[static_cast<size_t>(index)].tensor;
  }
  void Listen();
  void Run();
  // Sends and receives all packs that are missing. Runs on the thread, or on
  // the thread that calls Retry.
  absl::Status Exchange();
  absl::Status ExchangePacks();
  // Waits until this rank's update of a pack has ended, and returns how.
  absl::Status AwaitUpdates(const ParameterPack& pack) const;
  bool IsUpdated(const ParameterPack& pack) const;
  void Finish(ParameterTransfer& transfer);
  // Has all ranks know which packs are missing on any of them.
  absl::Status AgreeOnMissing();

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const int rank_;
  const std::vector<ExchangedParameter> parameters_;
  const std::shared_ptr<PendingStorages> pending_;
  std::vector<ParameterPack> packs_;
  std::thread thread_;
  // These may be read once the thread has ended.
  absl::Status status_;
  int failed_rank_ = -1;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
};

}  // namespace terrace
