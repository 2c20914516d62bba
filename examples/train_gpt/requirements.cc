#include "examples/train_gpt/requirements.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace train_gpt {
namespace {

// With --verify the later runs in memory need the most.
int64_t OptimizerBytes(const Flags& flags, int64_t parameters) {
  if (flags.optimizer == OptimizerKind::kSgd) return 0;
  if (flags.offloaded() && !flags.verify) {
    return flags.budget.Of(parameters *
                           (flags.dtype == Dtype::kFloat32 ? 8 : 12));
  }
  // Two moments, and an fp32 master where the parameters are 16-bit.
  return parameters * (flags.dtype == Dtype::kFloat32 ? 8 : 12);
}

}  // namespace

MemoryNeed EstimateMemory(const Flags& flags) {
  const ModelShape& shape = flags.shape;
  const int64_t element = flags.dtype == Dtype::kFloat32 ? 4 : 2;
  const int64_t parameters = ParameterCount(shape);
  const int64_t tokens = flags.batch * flags.seq;
  MemoryNeed need;
  need.parameters = parameters * element;
  need.gradients = parameters * element;
  need.optimizer = OptimizerBytes(flags, parameters);
  // A block keeps for backward: both norms' inputs and outputs (4 widths),
  // query, key and value (3), attention's result (1), the perceptron before
  // and after GELU (8); the head keeps logits and their soft maximum; all in
  // fp32, and beside them 16-bit parameters, widened.
  const double activations =
      static_cast<double>(tokens) *
          static_cast<double>(shape.layers * shape.width * 16 * 4 +
                              shape.vocab * 2 * 4) +
      static_cast<double>(element == 2 ? parameters * 4 : 0);
  // Flags may ask for more than can be counted; 2^60 is more than there is.
  need.activations = static_cast<int64_t>(std::min(activations, 0x1p60));
  need.libraries = int64_t{160} << 20;  // measured with LibTorch 2.11
  return need;
}

std::string Describe(const MemoryNeed& need) {
  return absl::StrCat(
      BytesText(static_cast<double>(need.total())), ": parameters ",
      BytesText(static_cast<double>(need.parameters)), ", gradients ",
      BytesText(static_cast<double>(need.gradients)), ", optimizer ",
      BytesText(static_cast<double>(need.optimizer)), ", activations ",
      BytesText(static_cast<double>(need.activations)), ", libraries ",
      BytesText(static_cast<double>(need.libraries)));
}

absl::Status CheckMemory(const MemoryNeed& need, int64_t available_bytes) {
  if (need.total() <= available_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "not enough memory: ", BytesText(static_cast<double>(available_bytes)),
      " are available, and the run needs about ", Describe(need)));
}

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

}  // namespace train_gpt
