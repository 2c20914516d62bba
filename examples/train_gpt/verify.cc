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
      Train(flags, corpus, model, optimizer,
            [&](const StepRecord& record) { losses.push_back(record.loss); });
  if (!status.ok()) return status;
  return losses;
}

// Calls compare(ours, theirs) for blocks of a few megabytes of every
// parameter: ours from the file, theirs the model's.
template <typename Compare>
absl::Status ForEachBlock(const Gpt& model, const ParameterFile& file,
                          Compare compare) {
  constexpr int64_t kBlock = 1 << 20;
  int64_t offset = 0;
  for (const Gpt::Parameter& parameter : model.parameters()) {
    const at::Tensor flat = parameter.tensor.detach().view({-1});
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

absl::Status CompareWithReference(const Flags& flags, const Corpus& corpus,
                                  const std::vector<double>& losses,
                                  const ParameterFile& parameters,
                                  Verification* result) {
  Gpt model(flags.shape, flags.dtype, flags.seed);
  const auto optimizer = MakeReferenceOptimizer(flags, model);
  const auto theirs = TrainAgain(flags, corpus, model, *optimizer);
  if (!theirs.ok()) return theirs.status();
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] != (*theirs)[i]) ++result->losses_different;
  }
  return ForEachBlock(model, parameters,
                      [&](const at::Tensor& a, const at::Tensor& b) {
                        result->parameters_different += CountDifferent(a, b);
                      });
}

absl::Status CompareWithLibTorch(const Flags& flags, const Corpus& corpus,
                                 const std::vector<double>& losses,
                                 const ParameterFile& parameters,
                                 Verification* result) {
  Gpt model(flags.shape, flags.dtype, flags.seed);
  const auto optimizer = MakeInMemoryOptimizer(flags, model);
  const auto theirs = TrainAgain(flags, corpus, model, *optimizer);
  if (!theirs.ok()) return theirs.status();
  for (size_t i = 0; i < losses.size(); ++i) {
    result->max_loss_difference = std::max(result->max_loss_difference,
                                           std::abs(losses[i] - (*theirs)[i]));
  }
  double squares = 0, difference_squares = 0;
  const absl::Status status = ForEachBlock(
      model, parameters, [&](const at::Tensor& a, const at::Tensor& b) {
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

}  // namespace

absl::Status SaveParameters(const Gpt& model, ParameterFile* file) {
  for (const Gpt::Parameter& parameter : model.parameters()) {
    const absl::Status status = file->Append(BytesOf(parameter.tensor));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<Verification> Verify(const Flags& flags, const Corpus& corpus,
                                    const std::vector<double>& losses,
                                    const ParameterFile& parameters) {
  Verification result;
  if (flags.dtype == Dtype::kBFloat16) result.tolerance = 0x1p-8;
  absl::Status status =
      CompareWithReference(flags, corpus, losses, parameters, &result);
  if (status.ok()) {
    status = CompareWithLibTorch(flags, corpus, losses, parameters, &result);
  }
  if (!status.ok()) return status;
  return result;
}

}  // namespace train_gpt
