// Weights that come from files straight below.
#include <c10/core/InferenceMode.h>

#include "tests/libtorch/offload/checkpoint_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Parameters = std::map<std::string, at::Tensor>;

Parameters ByName(const ::torch::nn::Module& model) {
  Parameters parameters;
  for (const auto& named : model.named_parameters()) {
    parameters[named.key()] = named.value();
  }
  return parameters;
}

void Train(TiedModelImpl& model, const at::Tensor& tokens,
           ::torch::optim::Optimizer& optimizer, Offload* offload) {
  for (int step = 0; step < 3; ++step) {
    if (offload != nullptr) offload->BeginStep();
    optimizer.zero_grad();
    model.forward(tokens).square().mean().backward();
    optimizer.step();
  }
}

TEST_F(OffloadCheckpointTest, ItTrainsAsTheModelThatTheFileIsOf) {
  const Parameters before = ByName(*meta_);
  // It has the parameters as they are on the meta device.
  ::torch::optim::SGD optimizer(meta_->parameters(), 0.05);
  auto made = Offload::Create(*meta_, From(Write(PlainFile())));
  ASSERT_TRUE(made.ok()) << made.status();
  const std::unique_ptr<Offload> offload = *std::move(made);
  const Parameters after = ByName(*meta_);
  for (const auto& [name, tensor] : before) {
    EXPECT_TRUE(after.at(name).is_same(tensor)) << name;
    EXPECT_TRUE(tensor.is_cpu() && tensor.is_leaf()) << name;
    EXPECT_EQ(tensor.requires_grad(),
              model_->named_parameters()[name].requires_grad())
        << name;
  }
  EXPECT_TRUE(meta_->out.is_same(meta_->embedding->weight));
  EXPECT_TRUE(meta_->first_rows.is_alias_of(meta_->out));
  EXPECT_TRUE(meta_->layers[2]->as<::torch::nn::Linear>()->weight.is_same(
      after.at("layers.2.weight")));
  {
    const c10::NoGradGuard guard;
    EXPECT_TRUE(meta_->forward(tokens_).equal(answer_));
  }
  const OffloadStats stats = offload->stats();
  EXPECT_EQ(stats.parameter_bytes, kModelBytes);
  EXPECT_EQ(stats.hook.managed_bytes, kModelBytes);
  EXPECT_LT(stats.budget_bytes, kModelBytes);
  EXPECT_LE(stats.runtime.host.peak_bytes, stats.budget_bytes);
  EXPECT_GT(stats.hook.evictions, 0);
  ::torch::optim::SGD plain(model_->parameters(), 0.05);
  Train(*model_, tokens_, plain, nullptr);
  Train(*meta_, tokens_, optimizer, offload.get());
  ASSERT_TRUE(offload->Close(Offload::AtClose::kRestore).ok());
  for (const auto& [name, tensor] : ByName(*model_)) {
    EXPECT_TRUE(after.at(name).equal(tensor)) << name;
  }
  // What was written through one name is there by the others.
  const c10::NoGradGuard guard;
  meta_->embedding->weight[2].fill_(7);
  EXPECT_TRUE(meta_->first_rows[2].equal(at::full({kWidth}, 7.0f)));
}

TEST_F(OffloadCheckpointTest, AllNamesOfOneTensorMayBeInTheFile) {
  SafetensorsWriter writer = PlainFile();
  const auto rows = ValuesOf(model_->first_rows);
  writer.Add("out", "F32", {kTokens, kWidth}, ValuesOf(model_->out));
  writer.Add("first_rows", "F32", {5, kWidth}, rows);
  const auto made = Offload::Create(*meta_, From(Write(writer)));
  ASSERT_TRUE(made.ok()) << made.status();
  const c10::NoGradGuard guard;
  EXPECT_TRUE(meta_->forward(tokens_).equal(answer_));
}

struct Single : ::torch::nn::Module {
  explicit Single(const at::Tensor& tensor) {
    weight = register_parameter("weight", tensor,
                                at::isFloatingType(tensor.scalar_type()));
    EXPECT_TRUE(MoveParametersToMeta(*this).ok());
  }
  at::Tensor weight;
};

std::string BytesOf(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

TEST_F(OffloadCheckpointTest, TheDtypeIsTheModels) {
  const std::vector<float> values = Quarters(300, 1);
  const std::pair<const char*, at::ScalarType> stored[] = {
      {"F32", at::kFloat},
      {"F16", at::kHalf},
      {"BF16", at::kBFloat16},
      {"F64", at::kDouble},
      {"F8_E5M2", at::kFloat8_e5m2}};
  for (const auto& [code, type] : stored) {
    SafetensorsWriter writer;
    std::vector<float> held = values;
    if (type == at::kFloat8_e5m2) held.assign(300, -1.5f);
    at::Tensor source = at::tensor(held);
    if (type != at::kFloat) source = source.to(type);
    writer.Add("weight", code, {30, 10}, BytesOf(source));
    for (const at::ScalarType mine :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      Single model(at::zeros({30, 10}, mine));
      const auto made = MakeFrom(model, Write(writer));
      ASSERT_TRUE(made.ok()) << code << made.status();
      EXPECT_EQ(model.weight.scalar_type(), mine);
      EXPECT_EQ(ValuesOf(model.weight), held) << code << " " << mine;
    }
  }
}

TEST_F(OffloadCheckpointTest, StridesOfTheModelStay) {
  // The last is of several pieces.
  const std::pair<std::vector<int64_t>, std::vector<int64_t>> cases[] = {
      {{30, 40}, {1, 30}},    {{}, {}},
      {{0, 3}, {3, 1}},       {{7}, {3}},
      {{2, 3, 4}, {4, 8, 1}}, {{1, 5}, {1, 1}},
      {{900, 1300}, {1, 900}}};
  for (const auto& [sizes, strides] : cases) {
    const int64_t count = c10::multiply_integers(sizes);
    std::vector<float> values = Quarters(count, 3);
    for (const char* const code : {"F32", "I8"}) {
      SafetensorsWriter writer;
      if (*code == 'F') {
        writer.Add("weight", code, sizes, values);
      } else {
        for (float& value : values) value *= 4;
        writer.Add("weight", code, sizes,
                   std::vector<int8_t>(values.begin(), values.end()));
      }
      Single model(at::empty_strided(sizes, strides, at::kFloat));
      const auto made = MakeFrom(model, Write(writer));
      ASSERT_TRUE(made.ok()) << made.status();
      EXPECT_EQ(model.weight.strides(), at::IntArrayRef(strides));
      EXPECT_EQ(model.weight.dim(), static_cast<int64_t>(sizes.size()));
      EXPECT_EQ(ValuesOf(model.weight), values) << count << code;
    }
  }
}

struct Buffered : ::torch::nn::Module {
  Buffered() {
    norm = register_module("norm", ::torch::nn::BatchNorm1d(3));
    table = register_buffer("table", at::arange(3, at::kFloat));
  }
  ::torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor table;
};

SafetensorsWriter BufferedFile() {
  SafetensorsWriter writer;
  writer.Add("norm.weight", "F32", {3}, std::vector<float>{1, 2, 3});
  writer.Add("norm.bias", "F32", {3}, std::vector<float>{4, 5, 6});
  writer.Add("norm.running_mean", "F16", {3},
             std::string("\0\x3c\0\x40\0\x42", 6));
  writer.Add("norm.running_var", "F32", {3}, std::vector<float>{7, 8, 9});
  writer.Add("norm.num_batches_tracked", "I64", {}, std::vector<int64_t>{11});
  return writer;
}

TEST_F(OffloadCheckpointTest, BuffersOfTheFileComeAndOthersStay) {
  Buffered model;
  ASSERT_TRUE(MoveParametersToMeta(model).ok());
  const at::Tensor mean = model.norm->running_mean;
  const auto made = MakeFrom(model, Write(BufferedFile()));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(model.norm->running_mean.is_same(mean));
  EXPECT_THAT(ValuesOf(mean), ElementsAre(1, 2, 3));
  EXPECT_THAT(ValuesOf(model.norm->running_var), ElementsAre(7, 8, 9));
  EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), 11);
  EXPECT_THAT(ValuesOf(model.table), ElementsAre(0, 1, 2));
  EXPECT_THAT(ValuesOf(model.norm->bias), ElementsAre(4, 5, 6));
}

TEST_F(OffloadCheckpointTest, BuffersOnMetaComeFromTheFileOrAreNamed) {
  struct OnMeta : ::torch::nn::Module {
    OnMeta() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      scale = register_buffer("scale", at::empty({2}, at::kMeta));
      other = register_buffer("other", at::empty({1}, at::kMeta));
    }
    at::Tensor weight, scale, other;
  };
  SafetensorsWriter writer;
  writer.Add("weight", "F32", {2}, std::vector<float>{1, 2});
  writer.Add("scale", "F32", {2}, std::vector<float>{3, 4});
  OnMeta model;
  const absl::Status refused = MakeFrom(model, Write(writer)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("missing, of buffers on meta, other"));
  EXPECT_TRUE(model.weight.is_meta() && model.scale.is_meta());
  writer.Add("other", "F32", {1}, std::vector<float>{5});
  const auto made = MakeFrom(model, Write(writer));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(model.named_buffers()["scale"].is_same(model.scale));
  EXPECT_THAT(ValuesOf(model.scale), ElementsAre(3, 4));
  EXPECT_THAT(ValuesOf(model.other), ElementsAre(5));
  EXPECT_EQ((*made)->stats().hook.managed_tensors, 1);  // the parameter's
}

TEST_F(OffloadCheckpointTest, AGraphFromBeforeDoesNotTakeItsGradients) {
  Single model(at::zeros({3}));
  const at::Tensor kept = model.weight.sum();  // on the meta device
  SafetensorsWriter writer;
  writer.Add("weight", "F32", {3}, std::vector<float>{1, 2, 3});
  const auto made = MakeFrom(model, Write(writer));
  ASSERT_TRUE(made.ok()) << made.status();
  model.weight.square().sum().backward();
  EXPECT_THAT(ValuesOf(model.weight.grad()), ElementsAre(2, 4, 6));
}

TEST_F(OffloadCheckpointTest, ModelsOfInferenceModeStayInIt) {
  SafetensorsWriter writer = BufferedFile();
  const std::string path = Write(writer);
  for (const bool is_inside : {true, false}) {
    std::unique_ptr<Buffered> model;
    std::unique_ptr<Offload> offload;
    {
      const c10::InferenceMode mode;
      model = std::make_unique<Buffered>();
      ASSERT_TRUE(MoveParametersToMeta(*model).ok());
      EXPECT_TRUE(model->norm->weight.is_inference());
      if (is_inside) {
        auto made = MakeFrom(*model, path);
        ASSERT_TRUE(made.ok()) << made.status();
        offload = *std::move(made);
      }
    }
    if (!is_inside) {
      auto made = MakeFrom(*model, path);
      ASSERT_TRUE(made.ok()) << made.status();
      offload = *std::move(made);
    }
    const c10::InferenceMode mode;
    EXPECT_TRUE(model->norm->weight.is_inference());
    EXPECT_THAT(ValuesOf(model->norm->weight), ElementsAre(1, 2, 3));
    EXPECT_THAT(ValuesOf(model->norm->running_mean), ElementsAre(1, 2, 3));
  }
}

}  // namespace
}  // namespace terrace
