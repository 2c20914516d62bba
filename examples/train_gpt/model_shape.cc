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

int64_t ParameterShape::count() const {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

std::vector<ParameterShape> ParameterShapes(const ModelShape& shape) {
  const int64_t w = shape.width;
  std::vector<ParameterShape> shapes;
  const auto norm = [&](const std::string& name) {
    shapes.push_back({name + ".weight", {w}});
    shapes.push_back({name + ".bias", {w}});
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    shapes.push_back({name + ".weight", {out, in}});
    shapes.push_back({name + ".bias", {out}});
  };
  shapes.push_back({"embedding", {shape.vocab, w}});
  shapes.push_back({"positions", {shape.context, w}});
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string block = absl::StrCat("block", i, ".");
    norm(block + "attention_norm");
    linear(block + "query_key_value", w, 3 * w);
    linear(block + "attention_out", w, w);
    norm(block + "perceptron_norm");
    linear(block + "perceptron_in", w, 4 * w);
    linear(block + "perceptron_out", 4 * w, w);
  }
  norm("last_norm");
  return shapes;
}

int64_t ParameterCount(const ModelShape& shape) {
  int64_t sum = 0;
  for (const ParameterShape& parameter : ParameterShapes(shape)) {
    sum += parameter.count();
  }
  return sum;
}

}  // namespace train_gpt
