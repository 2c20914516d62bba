#include "examples/train_gpt/verify.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/trainer.h"

namespace train_gpt {
namespace {

absl::Span<std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

absl::StatusOr<std::vector<double>> TrainAgain(const Flags& flags,
                                               const Corpus& corpus, Gpt& model,
                                               ModelOptimizer& optimizer) {
  std::vector<double> losses;
  const absl::Status status =
      Train(flags, corpus, model, optimizer, [&](const StepRecord& record) {
        losses.push_back(record.loss);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return losses;
}

// Calls compare(ours, theirs) for blocks of a few megabytes of every
// parameter: ours from the file, theirs as `theirs_of` returns it.
template <typename TheirsOf, typename Compare>
absl::Status ForEachBlock(int64_t parameters, const ParameterFile& file,
                          TheirsOf theirs_of, Compare compare) {
  constexpr int64_t kBlock = 1 << 20;
  int64_t offset = 0;
  for (int64_t i = 0; i < parameters; ++i) {
    const absl::StatusOr<at::Tensor> tensor = theirs_of(i);
    if (!tensor.ok()) return tensor.status();
    const at::Tensor flat = tensor->view({-1});
    for (int64_t first = 0; first < flat.numel(); first += kBlock) {
      const at::Tensor theirs =
          flat.narrow(0, first, std::min(kBlock, flat.numel() - first));
      const at::Tensor ours = at::empty({theirs.numel()}, theirs.options());
      const absl::Status status = file.Read(offset, BytesOf(ours));
      if (!status.ok()) return status;
      offset += static_cast<int64_t>(ours.nbytes());
      compare(ours, theirs);
    }
  }
  return absl::OkStatus();
}

int64_t CountDifferent(const at::Tensor& ours, const at::Tensor& theirs) {
  const auto* a = static_cast<const std::byte*>(ours.const_data_ptr());
  const auto* b = static_cast<const std::byte*>(theirs.const_data_ptr());
  const size_t size = ours.element_size();
  if (std::memcmp(a, b, ours.nbytes()) == 0) return 0;
  int64_t different = 0;
  for (size_t i = 0; i < ours.nbytes(); i += size) {
    if (std::memcmp(a + i, b + i, size) != 0) ++different;
  }
  return different;
}

// What a run in memory came to.
struct Outcome {
  const Gpt& model;
  ModelOptimizer& optimizer;
  const std::vector<double>& losses;
};

absl::Status CompareBits(const std::vector<double>& losses,
                         const FinalParameters& ours, const Outcome& reference,
                         Verification* result) {
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] != reference.losses[i]) ++result->losses_different;
  }
  const auto& parameters = reference.model.parameters();
  return ForEachBlock(
      static_cast<int64_t>(parameters.size()), ours.parameters,
      [&](int64_t i) -> absl::StatusOr<at::Tensor> {
        return parameters[static_cast<size_t>(i)].tensor.detach();
      },
      [&](const at::Tensor& a, const at::Tensor& b) {
        result->parameters_different += CountDifferent(a, b);
      });
}

absl::Status CompareSizes(const std::vector<double>& losses,
                          const FinalParameters& ours, const Outcome& libtorch,
                          Verification* result) {
  for (size_t i = 0; i < losses.size(); ++i) {
    result->max_loss_difference = std::max(
        result->max_loss_difference, std::abs(losses[i] - libtorch.losses[i]));
  }
  double squares = 0, difference_squares = 0;
  const absl::Status status = ForEachBlock(
      static_cast<int64_t>(libtorch.model.parameters().size()),
      ours.masters ? *ours.masters : ours.parameters,
      [&](int64_t i) { return libtorch.optimizer.Exact(i); },
      [&](const at::Tensor& a, const at::Tensor& b) {
        const at::Tensor exact = b.to(at::kDouble);
        const at::Tensor difference = a.to(at::kDouble).sub_(exact).abs_();
        squares += exact.square().sum().item<double>();
        difference_squares += difference.square().sum().item<double>();
        result->max_parameter_difference = std::max(
            result->max_parameter_difference, difference.max().item<double>());
      });
  result->parameter_l2_difference = std::sqrt(difference_squares / squares);
  return status;
}

// Trains in memory with what `make` returns, and compares.
template <typename Make, typename Compare>
absl::Status TrainAndCompare(const Flags& flags, const Corpus& corpus,
                             const std::vector<double>& losses,
                             const FinalParameters& ours, Make make,
                             Compare compare, Verification* result) {
  Gpt model(flags.shape, flags.dtype, flags.seed);
  const std::unique_ptr<ModelOptimizer> optimizer = make(flags, model);
  const auto theirs = TrainAgain(flags, corpus, model, *optimizer);
  if (!theirs.ok()) return theirs.status();
  return compare(losses, ours, {model, *optimizer, *theirs}, result);
}

}  // namespace

absl::StatusOr<FinalParameters> SaveParameters(const Gpt& model,
                                               ModelOptimizer& optimizer,
                                               const std::string& directory) {
  auto parameters = ParameterFile::Create(directory);
  if (!parameters.ok()) return parameters.status();
  FinalParameters result{*std::move(parameters), std::nullopt};
  for (const Gpt::Parameter& parameter : model.parameters()) {
    // An operation reads it wherever it is.
    const absl::Status status =
        result.parameters.Append(BytesOf(parameter.tensor.detach().clone()));
    if (!status.ok()) return status;
  }
  if (model.parameters().front().tensor.scalar_type() == at::kFloat) {
    return result;
  }
  auto masters = ParameterFile::Create(directory);
  if (!masters.ok()) return masters.status();
  result.masters = *std::move(masters);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const auto master = optimizer.Exact(static_cast<int64_t>(i));
    if (!master.ok()) return master.status();
    const absl::Status status = result.masters->Append(BytesOf(*master));
    if (!status.ok()) return status;
  }
  return result;
}

absl::StatusOr<Verification> Verify(const Flags& flags, const Corpus& corpus,
                                    const std::vector<double>& losses,
                                    const FinalParameters& final_parameters) {
  Verification result;
  absl::Status status =
      TrainAndCompare(flags, corpus, losses, final_parameters,
                      MakeReferenceOptimizer, CompareBits, &result);
  if (status.ok()) {
    status = TrainAndCompare(flags, corpus, losses, final_parameters,
                             MakeInMemoryOptimizer, CompareSizes, &result);
  }
  if (!status.ok()) return status;
  return result;
}

}  // namespace train_gpt
