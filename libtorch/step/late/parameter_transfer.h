// One transfer of a parameter exchange (parameter_exchange.h): some parameters
// of one owner go from it to all other ranks, bit for bit, with a word on
// whether they are updated.
//
// A parameter that travels alone goes from where it is to where it is, unless
// its elements do not lie in order; others are copied into a buffer and out of
// it. No operation of the hook or of a late update is made on the way.
//
// One thread uses a transfer, with at::DisableRecordFunctionGuard on. Its
// group, its pack and the parameters outlive it. What LibTorch throws passes
// through.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace terrace {

struct ExchangedParameter {
  std::string name;
  at::Tensor tensor;  // in CPU memory, or offloaded
  int owner = 0;      // the rank that updates it
};

// Parameters of one owner that travel as one.
struct ParameterPack {
  int owner = 0;
  int64_t bytes = 0;
  std::vector<int> parameters;  // indices
  std::string failure;          // why they are missing here, or empty
  int failed_rank = -1;         // the rank that said why
  bool is_missing = true;       // on any rank
};

// Returns the parameters as packs: the same in the same order on every rank
// whose parameters are alike. Parameters without elements are in none.
std::vector<ParameterPack> PacksOf(
    absl::Span<const ExchangedParameter> parameters);

class ParameterTransfer {
 public:
  ParameterTransfer(c10d::ProcessGroup& group, int rank,
                    absl::Span<const ExchangedParameter> parameters,
                    ParameterPack& pack);
  ParameterTransfer(ParameterTransfer&&) noexcept;
  ParameterTransfer& operator=(ParameterTransfer&&) = delete;
  ~ParameterTransfer();

  ParameterPack& pack() { return pack_; }

  // Begins the collectives. `updated` is how this rank's update of the pack
  // ended, where this rank is the owner.
  void Begin(const absl::Status& updated);
  bool HasEnded();
  // Waits for the collectives. The pack knows afterwards whether its values
  // are here.
  void End();
  // Waits until nothing reads or writes the buffers, after an exception.
  void Abandon();

 private:
  struct Elements;
  struct Buffers;

  bool IsSent() const { return pack_.owner == rank_; }
  const at::Tensor& TensorOf(int index) const {
    return parameters_[static_cast<size_t>(index)].tensor;
  }
  void Fail(const absl::Status& why);
  c10::intrusive_ptr<c10d::Work> Broadcast(const at::Tensor& bytes);
  // Takes the memory of a parameter that travels alone.
  absl::Status Hold();
  // Both copy between the buffer and the parameters.
  absl::Status Fill();
  absl::Status Spread();

  c10d::ProcessGroup& group_;
  const int rank_;
  const absl::Span<const ExchangedParameter> parameters_;
  ParameterPack& pack_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace terrace
