// A small model for optimizer tests and what its training must give: plain
// vectors, a serial loop, the public scalar step and norm of terrace/adam.h.
// Nothing of the runtime, of chunks or of a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terrace/optimizer.h"

namespace terrace {

// Values of one parameter or gradient: of one dtype, in memory of their own.
class Values {
 public:
  Values() = default;
  Values(DType dtype, int64_t count)
      : dtype_(dtype),
        fp32_(dtype == DType::kFloat32 ? count : 0),
        bits_(dtype == DType::kFloat32 ? 0 : count) {}

  DType dtype() const { return dtype_; }
  int64_t count() const {
    return static_cast<int64_t>(fp32_.size() + bits_.size());
  }
  void* data() {
    return dtype_ == DType::kFloat32 ? static_cast<void*>(fp32_.data())
                                     : bits_.data();
  }
  const void* data() const { return const_cast<Values*>(this)->data(); }
  std::vector<float>& fp32() { return fp32_; }
  std::vector<uint16_t>& bits() { return bits_; }
  const std::vector<float>& fp32() const { return fp32_; }
  const std::vector<uint16_t>& bits() const { return bits_; }
  // Rounded to the dtype.
  void Set(int64_t index, float value);
  float Get(int64_t index) const;
  bool SameBits(const Values& other) const;

 private:
  DType dtype_ = DType::kFloat32;
  std::vector<float> fp32_;
  std::vector<uint16_t> bits_;
};

struct ModelParameter {
  ParameterSpec spec;
  Values values;
  Values gradient;
  bool has_gradient = true;
};

// Parameters off every grid: prime sizes, one element, none, width 928; fp32,
// bf16 and fp16 in turn, 16-bit ones with gradients of either width.
class Model {
 public:
  static Model Mixed(uint64_t seed);
  static Model Of(std::vector<ParameterSpec> specs, uint64_t seed);

  // Appends parameters; their values continue the draw of `seed`.
  void Add(std::vector<ParameterSpec> specs, uint64_t seed);

  std::vector<ModelParameter>& parameters() { return parameters_; }
  const std::vector<ModelParameter>& parameters() const { return parameters_; }
  std::vector<ParameterSpec> specs() const;
  // Pointers into this model.
  std::vector<ParameterData> data();
  // Gradients of one step, times `scale`; the same for the same arguments.
  void DrawGradients(int64_t step, float scale = 1);

 private:
  uint64_t seed_ = 0;
  std::vector<ModelParameter> parameters_;
};

// Steps a copy of a model's parameters; also of those that are added later.
class ReferenceOptimizer {
 public:
  ReferenceOptimizer(const Model& model, const OptimizerOptions& options);

  // One step with the gradients that `model` has now.
  void Step(const StepArguments& arguments, const Model& model);

  // Values that were written into the model outside of steps. A 16-bit
  // element whose bits they changed goes on from there.
  void AdoptValues(const Model& model, size_t parameter) {
    states_[parameter].values = model.parameters()[parameter].values;
  }

  // Without the state of one parameter, as before its first step.
  void Forget(size_t parameter) {
    State& state = states_[parameter];
    state.master.clear();
    state.m.assign(state.m.size(), 0);
    state.v.assign(state.v.size(), 0);
    state.step = 0;
  }

  // Whether the parameters of `model` have the same bits; says which not.
  std::string Difference(const Model& model) const;
  // And the state that the optimizer reads back.
  std::string StateDifference(OffloadedOptimizer& optimizer) const;

  const Values& values(size_t parameter) const {
    return states_[parameter].values;
  }
  int64_t step() const { return step_; }
  std::vector<int64_t> parameter_steps() const;
  double gradient_norm() const { return gradient_norm_; }

 private:
  struct State {
    Values values;
    // The master is empty before the first step with a gradient.
    std::vector<float> master, m, v;
    int64_t step = 0;
  };

  // Starts states for parameters that the model has got since.
  void Adopt(const Model& model);

  const OptimizerOptions options_;
  std::vector<State> states_;
  int64_t step_ = 0;
  double gradient_norm_ = 0;
};

}  // namespace terrace
