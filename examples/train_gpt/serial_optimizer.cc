// AdamW from plain vectors, one serial loop, and the public scalar step and
// norm of terrace/adam.h. Nothing here knows of chunks, tiers or threads.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "examples/train_gpt/model_optimizer.h"
#include "terrace/adam.h"

namespace train_gpt {
namespace {

template <typename T>
absl::Span<T> Elements(const at::Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()),
          static_cast<size_t>(tensor.numel())};
}

class Reference : public ModelOptimizer {
 public:
  Reference(const Flags& flags, Gpt& model)
      : model_(model),
        dtype_(DTypeOf(flags.dtype)),
        fp32_(dtype_ == terrace::DType::kFloat32),
        clip_(flags.clip),
        skip_nonfinite_(flags.skip_nonfinite),
        adam_(flags.adam),
        schedule_(flags.schedule) {
    for (const Gpt::Parameter& parameter : model.parameters()) {
      const auto count = static_cast<size_t>(parameter.tensor.numel());
      State state{{}, std::vector<float>(count), std::vector<float>(count)};
      if (!fp32_) {
        for (uint16_t bits : Elements<uint16_t>(parameter.tensor)) {
          state.master.push_back(terrace::WidenReference(dtype_, bits));
        }
      }
      states_.push_back(std::move(state));
    }
  }

  absl::StatusOr<double> Step(double loss_scale) override {
    const double norm =
        clip_ > 0 || skip_nonfinite_ ? GradientNorm() / loss_scale : 0;
    if (skip_nonfinite_ && !std::isfinite(norm)) return norm;
    ++step_;
    const terrace::AdamOptions options =
        terrace::AdamAt(schedule_, step_, adam_);
    const auto factor = static_cast<float>(ClipFactor(norm, clip_, loss_scale));
    for (size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      const at::Tensor& tensor = model_.parameters()[i].tensor;
      const absl::Span<float> first = absl::MakeSpan(state.first);
      const absl::Span<float> second = absl::MakeSpan(state.second);
      if (fp32_) {
        terrace::AdamStepReference(options, step_, factor,
                                   Elements<float>(tensor), first, second,
                                   Elements<const float>(tensor.grad()));
        continue;
      }
      terrace::AdamStepReference(
          options, step_, factor, absl::MakeSpan(state.master), first, second,
          dtype_, Elements<const uint16_t>(tensor.grad()));
      const absl::Span<uint16_t> out = Elements<uint16_t>(tensor);
      for (size_t j = 0; j < out.size(); ++j) {
        out[j] = terrace::NarrowReference(dtype_, state.master[j]);
      }
    }
    return norm;
  }

  absl::StatusOr<at::Tensor> Exact(int64_t index) override {
    State& state = states_[static_cast<size_t>(index)];
    const at::Tensor& parameter =
        model_.parameters()[static_cast<size_t>(index)].tensor;
    if (fp32_) return parameter.detach();
    const at::Tensor copy = at::empty(parameter.sizes(), at::kFloat);
    std::copy(state.master.begin(), state.master.end(),
              Elements<float>(copy).begin());
    return copy;
  }

 private:
  struct State {
    std::vector<float> master;  // of 16-bit parameters
    std::vector<float> first, second;
  };

  double GradientNorm() const {
    double squares = 0;
    for (const Gpt::Parameter& parameter : model_.parameters()) {
      const at::Tensor& gradient = parameter.tensor.grad();
      squares = fp32_
                    ? terrace::SquaredNormReference(
                          Elements<const float>(gradient), squares)
                    : terrace::SquaredNormReference(
                          dtype_, Elements<const uint16_t>(gradient), squares);
    }
    return std::sqrt(squares);
  }

  Gpt& model_;
  const terrace::DType dtype_;
  const bool fp32_;
  const double clip_;
  const bool skip_nonfinite_;
  const terrace::AdamOptions adam_;
  const terrace::LearningRateSchedule schedule_;
  int64_t step_ = 0;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ModelOptimizer> MakeReferenceOptimizer(const Flags& flags,
                                                       Gpt& model) {
  return std::make_unique<Reference>(flags, model);
}

}  // namespace train_gpt
