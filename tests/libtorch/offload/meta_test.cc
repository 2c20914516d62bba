// Parameters on the meta device are the tensors that they were, without memory.
#include "terrace/torch/meta.h"

#include <torch/torch.h>

#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(MetaTest, ParametersStayTheSameTensorsWithoutMemory) {
  TiedModel model;
  const at::Tensor member = model->embedding->weight;
  const at::Tensor entry = model->parameters()[0];
  at::Tensor& layer = model->layers[3]->as<::torch::nn::Linear>()->weight;
  const uint32_t version = member._version();
  model->forward(at::arange(0, 4).view({2, 2})).sum().backward();
  ASSERT_TRUE(member.grad().defined());
  const absl::Status moved = MoveParametersToMeta(*model);
  ASSERT_TRUE(moved.ok()) << moved;
  for (const auto& named : model->named_parameters()) {
    EXPECT_TRUE(named.value().is_meta()) << named.key();
    EXPECT_FALSE(named.value().grad().defined()) << named.key();
  }
  EXPECT_TRUE(member.is_same(entry));
  EXPECT_TRUE(model->embedding->weight.is_meta());
  EXPECT_TRUE(model->out.is_same(model->embedding->weight));
  EXPECT_TRUE(model->first_rows.is_alias_of(model->embedding->weight));
  EXPECT_FALSE(model->first_rows.is_alias_of(layer));
  EXPECT_TRUE(layer.is_meta());
  EXPECT_EQ(layer.sizes(), at::IntArrayRef({kWidth, kWidth}));
  EXPECT_EQ(layer.storage().nbytes(), size_t{4 * kWidth * kWidth});
  EXPECT_FALSE(layer.requires_grad());
  EXPECT_TRUE(member.requires_grad() && member.is_leaf());
  EXPECT_EQ(member._version(), version);
  // Shapes are there.
  const at::Tensor answer =
      at::linear(at::empty({2, 5, kWidth}, at::kMeta), model->out);
  EXPECT_EQ(answer.sizes(), at::IntArrayRef({2, 5, kTokens}));
  // Again: nothing.
  EXPECT_TRUE(MoveParametersToMeta(*model).ok());
  EXPECT_TRUE(model->first_rows.is_alias_of(model->out));
}

TEST(MetaTest, BuffersKeepTheirValues) {
  ::torch::nn::BatchNorm1d model(5);
  model->running_mean.fill_(3);
  ASSERT_TRUE(MoveParametersToMeta(*model).ok());
  EXPECT_TRUE(model->weight.is_meta());
  EXPECT_TRUE(model->running_mean.equal(at::full({5}, 3.0f)));
}

TEST(MetaTest, ABufferInAParametersMemoryIsNamedAndNothingMoves) {
  struct Shared : ::torch::nn::Module {
    Shared() {
      inner = register_module("inner", ::torch::nn::Linear(3, 4));
      table = inner->register_buffer("table", inner->weight.detach()[1]);
      inner->register_buffer("own", at::ones({2}));
    }
    ::torch::nn::Linear inner{nullptr};
    at::Tensor table;
  };
  Shared model;
  const at::Tensor before = model.table.clone();
  const absl::Status moved = MoveParametersToMeta(model);
  EXPECT_TRUE(absl::IsInvalidArgument(moved)) << moved;
  EXPECT_THAT(std::string(moved.message()),
              AllOf(HasSubstr("the buffer 'inner.table' has the memory"),
                    Not(HasSubstr("inner.own"))));
  EXPECT_FALSE(model.inner->bias.is_meta());
  EXPECT_TRUE(model.table.equal(before));
  // With memory of its own it keeps its values.
  model.table.set_data(model.table.clone());
  EXPECT_TRUE(MoveParametersToMeta(model).ok());
  EXPECT_TRUE(model.inner->weight.is_meta());
  EXPECT_TRUE(model.table.equal(before));
}

TEST(MetaTest, LibTorchItselfCannotMoveThem) {
  ::torch::nn::Linear model(3, 4);
  EXPECT_THAT(ThrownBy([&] { model->to(at::kMeta); }),
              HasSubstr("incompatible tensor type"));
}

TEST(MetaTest, WhatCannotMoveIsNamedAndNothingMoves) {
  struct Odd : ::torch::nn::Module {
    Odd() {
      register_parameter("plain", at::ones({3}));
      register_parameter("sparse", at::eye(3).to_sparse(), false);
      register_parameter("made",
                         ::torch::ones({2}, ::torch::requires_grad()) * 2);
    }
  };
  Odd model;
  const absl::Status moved = MoveParametersToMeta(model);
  EXPECT_TRUE(absl::IsInvalidArgument(moved)) << moved;
  EXPECT_THAT(std::string(moved.message()),
              AllOf(HasSubstr("'sparse' is not dense"),
                    HasSubstr("'made' is no leaf"), Not(HasSubstr("plain"))));
  EXPECT_FALSE(model.named_parameters()["plain"].is_meta());
}

class MetaOffloadTest : public OffloadTest {};

TEST_F(MetaOffloadTest, WhatIsOffloadedDoesNotMove) {
  Make(Third());
  const absl::Status moved = MoveParametersToMeta(*model_);
  EXPECT_TRUE(absl::IsFailedPrecondition(moved)) << moved;
  EXPECT_THAT(
      std::string(moved.message()),
      AllOf(HasSubstr("'out', 'first_rows', "), HasSubstr("'layers.15.bias'")));
  ExpectValues();
}

}  // namespace
}  // namespace terrace
