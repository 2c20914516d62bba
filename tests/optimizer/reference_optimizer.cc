#include "tests/optimizer/reference_optimizer.h"

#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kFp16 = DType::kFloat16;

template <typename T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Uniform in [-1, 1).
float Draw(std::mt19937_64& random) {
  return static_cast<float>(static_cast<int64_t>(random() >> 40) - (1 << 23)) /
         (1 << 23);
}

}  // namespace

void Values::Set(int64_t index, float value) {
  const auto i = static_cast<size_t>(index);
  if (dtype_ == kF32) {
    fp32_[i] = value;
  } else {
    bits_[i] = NarrowReference(dtype_, value);
  }
}

float Values::Get(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return dtype_ == kF32 ? fp32_[i] : WidenReference(dtype_, bits_[i]);
}

bool Values::SameBits(const Values& other) const {
  return dtype_ == other.dtype_ && SameBytes(fp32_, other.fp32_) &&
         SameBytes(bits_, other.bits_);
}

Model Model::Mixed(uint64_t seed) {
  Model model = Of({{"prime", kF32, 10007},
                    {"half", kBf16, 928},
                    {"one", kF32, 1},
                    {"none", kF32, 0},
                    {"wide", kF32, 928 * 7},
                    {"half_one", kBf16, 1},
                    {"half_prime", kBf16, 20011},
                    {"float16", kFp16, 5003},
                    {"half_none", kFp16, 0},
                    {"grid", kF32, 8192},
                    {"half_grid", kBf16, 4096},
                    {"last", kF32, 30011}},
                   seed);
  for (size_t i : {6, 10}) {  // accumulated in fp32
    ModelParameter& parameter = model.parameters_[i];
    parameter.gradient = Values(kF32, parameter.spec.count);
  }
  return model;
}

Model Model::Of(std::vector<ParameterSpec> specs, uint64_t seed) {
  Model model;
  model.seed_ = seed;
  model.Add(std::move(specs), seed);
  return model;
}

void Model::Add(std::vector<ParameterSpec> specs, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (ParameterSpec& spec : specs) {
    ModelParameter parameter;
    parameter.values = Values(spec.dtype, spec.count);
    parameter.gradient = Values(spec.dtype, spec.count);
    for (int64_t i = 0; i < spec.count; ++i) {
      parameter.values.Set(i, Draw(random));
    }
    parameter.spec = std::move(spec);
    parameters_.push_back(std::move(parameter));
  }
}

std::vector<ParameterSpec> Model::specs() const {
  std::vector<ParameterSpec> specs;
  for (const ModelParameter& parameter : parameters_) {
    specs.push_back(parameter.spec);
  }
  return specs;
}

std::vector<ParameterData> Model::data() {
  std::vector<ParameterData> data;
  for (ModelParameter& parameter : parameters_) {
    ParameterData one;
    one.parameter = parameter.values.data();
    one.gradient_dtype = parameter.gradient.dtype();
    if (parameter.has_gradient) {
      // Never read when there are no elements, but not null.
      one.gradient = parameter.spec.count > 0 ? parameter.gradient.data()
                                              : &parameter.gradient;
    }
    data.push_back(one);
  }
  return data;
}

void Model::DrawGradients(int64_t step, float scale) {
  std::mt19937_64 random(seed_ * 1000003 + static_cast<uint64_t>(step));
  for (ModelParameter& parameter : parameters_) {
    for (int64_t i = 0; i < parameter.spec.count; ++i) {
      parameter.gradient.Set(i, 0.1f * Draw(random) * scale);
    }
  }
}

ReferenceOptimizer::ReferenceOptimizer(const Model& model,
                                       const OptimizerOptions& options)
    : options_(options) {
  Adopt(model);
}

void ReferenceOptimizer::Adopt(const Model& model) {
  for (size_t i = states_.size(); i < model.parameters().size(); ++i) {
    const ModelParameter& parameter = model.parameters()[i];
    State state;
    state.values = parameter.values;
    state.m.resize(static_cast<size_t>(parameter.spec.count));
    state.v.resize(static_cast<size_t>(parameter.spec.count));
    states_.push_back(std::move(state));
  }
}

std::vector<int64_t> ReferenceOptimizer::parameter_steps() const {
  std::vector<int64_t> steps;
  for (const State& state : states_) steps.push_back(state.step);
  return steps;
}

void ReferenceOptimizer::Step(const StepArguments& arguments,
                              const Model& model) {
  Adopt(model);
  double squared = 0;
  for (const ModelParameter& parameter : model.parameters()) {
    if (!parameter.has_gradient) continue;
    const Values& gradient = parameter.gradient;
    squared =
        gradient.dtype() == kF32
            ? SquaredNormReference(gradient.fp32(), squared)
            : SquaredNormReference(gradient.dtype(), gradient.bits(), squared);
  }
  const double scale = arguments.loss_scale;
  const double clip =
      arguments.max_gradient_norm.value_or(options_.max_gradient_norm);
  gradient_norm_ = std::sqrt(squared) / scale;
  if (arguments.skip_nonfinite.value_or(options_.skip_nonfinite) &&
      !std::isfinite(squared)) {
    return;
  }
  ++step_;
  double divisor = scale;
  if (clip > 0) divisor *= std::max(1.0, (gradient_norm_ + 1e-6) / clip);
  const auto multiplier = static_cast<float>(1.0 / divisor);
  for (size_t i = 0; i < states_.size(); ++i) {
    const ModelParameter& parameter = model.parameters()[i];
    if (!parameter.has_gradient) continue;
    State& state = states_[i];
    AdamOptions adam =
        arguments.groups.empty()
            ? options_.adam
            : arguments.groups[static_cast<size_t>(parameter.spec.group)];
    if (arguments.learning_rate) adam.learning_rate = *arguments.learning_rate;
    const bool fp32 = parameter.spec.dtype == kF32;
    const bool first = state.master.empty();
    for (int64_t j = 0; !fp32 && first && j < parameter.spec.count; ++j) {
      state.master.push_back(state.values.Get(j));
    }
    for (size_t j = 0; j < state.master.size(); ++j) {
      const DType dtype = parameter.spec.dtype;
      if (NarrowReference(dtype, state.master[j]) != state.values.bits()[j]) {
        state.master[j] = WidenReference(dtype, state.values.bits()[j]);
      }
    }
    ++state.step;
    std::vector<float>& updated = fp32 ? state.values.fp32() : state.master;
    const Values& gradient = parameter.gradient;
    if (gradient.dtype() == kF32) {
      AdamStepReference(adam, state.step, multiplier, absl::MakeSpan(updated),
                        absl::MakeSpan(state.m), absl::MakeSpan(state.v),
                        gradient.fp32());
    } else {
      AdamStepReference(adam, state.step, multiplier, absl::MakeSpan(updated),
                        absl::MakeSpan(state.m), absl::MakeSpan(state.v),
                        gradient.dtype(), gradient.bits());
    }
    for (size_t j = 0; !fp32 && j < updated.size(); ++j) {
      state.values.Set(static_cast<int64_t>(j), updated[j]);
    }
  }
}

std::string ReferenceOptimizer::Difference(const Model& model) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    const ModelParameter& parameter = model.parameters()[i];
    if (parameter.values.SameBits(states_[i].values)) continue;
    for (int64_t j = 0; j < parameter.spec.count; ++j) {
      const float expected = states_[i].values.Get(j);
      const float actual = parameter.values.Get(j);
      if (std::memcmp(&expected, &actual, sizeof(float)) == 0) continue;
      return absl::StrCat("parameter ", parameter.spec.name, "[", j, "] is ",
                          actual, ", expected ", expected);
    }
  }
  return "";
}

std::string ReferenceOptimizer::StateDifference(
    OffloadedOptimizer& optimizer) const {
  using Kind = OffloadedOptimizer::StateKind;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    const std::pair<Kind, const std::vector<float>*> kinds[] = {
        {Kind::kFirstMoment, &state.m},
        {Kind::kSecondMoment, &state.v},
        {Kind::kMaster, &state.master}};
    for (const auto& [kind, expected] : kinds) {
      if (kind == Kind::kMaster && state.master.empty()) continue;
      std::vector<float> actual(expected->size());
      const absl::Status status =
          optimizer.ReadState(static_cast<int>(i), kind, absl::MakeSpan(actual),
                              absl::Now() + absl::Seconds(30));
      if (!status.ok()) return std::string(status.message());
      if (!SameBytes(actual, *expected)) {
        return absl::StrCat("state ", static_cast<int>(kind), " of parameter ",
                            i, " differs");
      }
    }
  }
  return "";
}

}  // namespace terrace
