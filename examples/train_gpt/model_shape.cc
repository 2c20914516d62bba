#include "examples/train_gpt/model_shape.h"

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

absl::Status CheckRange(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is from 1 to ", most, ", not ", value));
}

}  // namespace

absl::StatusOr<ModelShape> PresetShape(absl::string_view name) {
  // 50,304 is GPT-2's vocabulary of 50,257 rounded up to a multiple of 128.
  if (name == "tiny") return ModelShape{5, 7, 224, 256, 256};
  if (name == "mini") return ModelShape{6, 10, 640, 256, 512};
  if (name == "small") return ModelShape{12, 12, 768, 50304, 1024};
  if (name == "medium") return ModelShape{24, 16, 1024, 50304, 1024};
  if (name == "large") return ModelShape{36, 20, 1280, 50304, 1024};
  return absl::InvalidArgumentError(absl::StrCat(
      "--size is tiny, mini, small, medium or large, not '", name, "'"));
}

int64_t DefaultHeads(int64_t width) {
  if (width % 64 == 0) return width / 64;
  if (width % 32 == 0) return width / 32;
  return 1;
}

absl::Status CheckShape(const ModelShape& shape) {
  absl::Status status = CheckRange("layers", shape.layers, 1024);
  if (status.ok()) status = CheckRange("width", shape.width, 65536);
  if (status.ok()) status = CheckRange("heads", shape.heads, shape.width);
  if (status.ok()) status = CheckRange("vocab", shape.vocab, 1 << 20);
  if (status.ok()) status = CheckRange("context", shape.context, 1 << 20);
  if (!status.ok()) return status;
  if (shape.width % shape.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--heads ", shape.heads, " does not divide the width of ",
                     shape.width));
  }
  return absl::OkStatus();
}

int64_t ParameterCount(const ModelShape& shape) {
  const int64_t w = shape.width;
  const int64_t norm = 2 * w;
  const int64_t attention = 3 * w * w + 3 * w + w * w + w;
  const int64_t perceptron = 4 * w * w + 4 * w + 4 * w * w + w;
  return shape.vocab * w + shape.context * w +
         shape.layers * (2 * norm + attention + perceptron) + norm;
}

}  // namespace train_gpt
