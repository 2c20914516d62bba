// Optimizers that join a model whose activations are below.
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

class JoinedActivationsTest : public JoinedTest,
                              public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Parameters, JoinedActivationsTest, testing::Bool());

TEST_P(JoinedActivationsTest, StepsHaveTheSameBits) {
  OffloadOptions options = Bytes((GetParam() ? 3 : 1) * kModelBytes);
  options.parameters = GetParam();
  options.activations = true;
  options.activations_above_bytes = 4 << 10;
  MakeJoined(options);
  // Of its memory operations have less now.
  EXPECT_LT(offload_->stats().activation_limit_bytes,
            options.memory_budget_bytes / 5);
  for (int64_t step = 1; step <= 4; ++step) {
    offload_->BeginStep();
    optimizer_->zero_grad();
    reference_->zero_grad();
    ActivationScope saving = offload_->SaveActivations();
    const std::vector<at::Tensor> losses = TwoPasses(model_, step);
    saving.End();
    ExpectSame(losses, TwoPasses(plain_, step));
    ASSERT_TRUE(optimizer_->TryStep().ok());
    ASSERT_TRUE(reference_->TryStep().ok());
  }
  ASSERT_TRUE(optimizer_->Flush().ok());
  ExpectSameState();
  ExpectSameParameters();
  ExpectWithinBudget();
  EXPECT_GT(offload_->stats().hook.saved.tensors, 4 * 2 * kLayers);
  EXPECT_GT(offload_->stats().hook.saved.evicted_bytes, 0);
  EXPECT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectSameParameters();
}

}  // namespace
}  // namespace terrace
