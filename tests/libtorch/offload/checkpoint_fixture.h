// Models on the meta device, and files for them that this test writes byte by
// byte from plain vectors.
#pragma once

#include <map>
#include <vector>

#include "terrace/torch/meta.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/libtorch/offload/offload_fixture.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

// Numbers that all floating dtypes have: quarters from -4 to 4.
inline std::vector<float> Quarters(int64_t count, int64_t salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(
        static_cast<float>((i * 7 + salt * 13 + i / 33) % 33 - 16) / 4);
  }
  return values;
}

inline std::vector<float> ValuesOf(const at::Tensor& tensor) {
  const c10::NoGradGuard guard;
  const at::Tensor plain =
      at::empty(tensor.sizes(), at::kFloat).copy_(tensor).view({-1});
  return {plain.const_data_ptr<float>(),
          plain.const_data_ptr<float>() + plain.numel()};
}

class OffloadCheckpointTest : public OffloadTest {
 protected:
  OffloadCheckpointTest() {
    at::manual_seed(2);  // other values than the file's
    EXPECT_TRUE(MoveParametersToMeta(*meta_).ok());
  }

  // The fixture's model, without the second names of its embedding.
  SafetensorsWriter PlainFile() const {
    SafetensorsWriter writer;
    for (const auto& named : model_->named_parameters()) {
      if (named.key() == "out" || named.key() == "first_rows") continue;
      writer.Add(named.key(), "F32", named.value().sizes().vec(),
                 ValuesOf(named.value()));
    }
    return writer;
  }
  std::string Write(const SafetensorsWriter& writer) const {
    return files_.Write("weights", writer.Bytes());
  }
  OffloadOptions From(const std::string& path) const {
    OffloadOptions options = Third();
    options.checkpoint = path;
    return options;
  }
  absl::StatusOr<std::unique_ptr<Offload>> MakeFrom(
      ::torch::nn::Module& model, const std::string& path) const {
    OffloadOptions options = Bytes(0);
    options.nvme_paths.clear();
    options.checkpoint = path;
    return Offload::Create(model, options);
  }
  static void ExpectOnMeta(const ::torch::nn::Module& model) {
    for (const auto& named : model.named_parameters()) {
      EXPECT_TRUE(named.value().is_meta()) << named.key();
    }
  }

  mutable TiedModel meta_;
  TemporaryDirectory files_;
};

}  // namespace terrace
