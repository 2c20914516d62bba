// Disks that fail under activations, a Close before backward, a child without
// their bytes, and what is refused.
#include <sys/wait.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "terrace/torch/meta.h"
#include "tests/libtorch/offload/activations_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using ::torch::autograd::Engine;

using ActivationsFailureTest = ActivationsTest;

TEST_F(ActivationsFailureTest, ATierWithoutRoomEndsTheOperation) {
  if (folder_.has_daemon()) GTEST_SKIP() << "its tiers are the daemon's";
  OffloadOptions options = Alone();
  options.memory_budget_bytes = 0;
  options.nvme_paths.clear();
  options.tiers = {*ParseTier("dram=256KiB"),
                   *ParseTier("nvme:" + folder_.path() + "=768KiB")};
  Make(options);
  offload_->BeginStep();
  EXPECT_THAT(ThrownBy([&] { Below(1); }), StartsWith("terrace: 'activation "));
  const absl::Status error = offload_->error();
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted) << error;
  EXPECT_THAT(std::string(error.message()),
              MatchesRegex("'activation [0-9]+ of step 1' 32 KiB: .*EDQUOT.*"));
  // The graph is gone, and a smaller one has room.
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
  ZeroGradients();
  Below(2, /*rows=*/64).backward();
  Plain(2, /*rows=*/64).backward();
  EXPECT_GT(Saved().tensors, kActivations);
  ExpectSameGradients();
}

TEST_F(ActivationsFailureTest, BytesThatAreGoneEndBackward) {
  Make(Alone());
  at::Tensor loss = Below(1);
  ASSERT_GT(Saved().evicted_bytes, 0);
  std::filesystem::resize_file(offload_->stats().runtime.paths()[0].disk.file,
                               0);
  EXPECT_THAT(ThrownBy([&] { loss.backward(); }),
              StartsWith("terrace: 'activation "));
  const absl::Status error = offload_->error();
  EXPECT_FALSE(error.ok());
  EXPECT_THAT(std::string(error.message()), HasSubstr(folder_.path()));
  EXPECT_GT(offload_->stats().hook.failures, 0);
  loss.reset();
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
  EXPECT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  // From here on in memory.
  ZeroGradients();
  Below(2).backward();
  Plain(2).backward();
  ExpectSameGradients();
}

TEST_F(ActivationsFailureTest, CloseBringsALiveGraphBack) {
  Make(Alone());
  const at::Tensor loss = Below(1);
  const ActivationScope open = offload_->SaveActivations();
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  EXPECT_TRUE(folder_.empty());
  EXPECT_EQ(offload_->stats().hook.managed_tensors, kActivations);
  loss.backward();
  Plain(1).backward();
  ExpectSameGradients();
  offload_.reset();
  LossOf(model_, TokensOf(2)).backward();  // in a scope that outlives it
}

TEST_F(ActivationsFailureTest, CloseMayLeaveALiveGraphAway) {
  Make(Alone());
  const at::Tensor loss = Below(1);
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRefuse).ok());
  EXPECT_THAT(ThrownBy([&] { loss.backward(); }),
              MatchesRegex("terrace: 'activation [0-9]+ of step 0'.* the hook "
                           "is closed.*"));
}

TEST_F(ActivationsFailureTest, AForkedChildSavesInItsOwnMemory) {
  Make(Alone());
  const at::Tensor loss = Below(1);
  Plain(2).backward();
  ActivationScope open = offload_->SaveActivations();
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    if (ThrownBy([&] { loss.backward(); }).rfind("terrace: ", 0) != 0) {
      _exit(1);
    }
    model_->zero_grad();
    LossOf(model_, TokensOf(2)).backward();
    Below(2);
    _exit(GradientsOf(model_)[0].equal(GradientsOf(plain_)[0]) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Saved().tensors, kActivations);
  open.End();
  ZeroGradients();
  loss.backward();
  Plain(1).backward();
  ExpectSameGradients();
}

class ActivationsRefusalTest : public ActivationsTest {
 protected:
  std::string Refused(absl::StatusCode code, const OffloadOptions& options) {
    const absl::Status status = Offload::Create(*model_, options).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(folder_.empty());
    return std::string(status.message());
  }
  std::string Invalid(const OffloadOptions& options) {
    return Refused(absl::StatusCode::kInvalidArgument, options);
  }
};

TEST_F(ActivationsRefusalTest, OptionsThatDoNotGoTogether) {
  if (folder_.has_daemon()) GTEST_SKIP() << "a daemon has a disk";
  OffloadOptions options = Alone();
  options.activations_above_bytes = 0;
  EXPECT_THAT(Invalid(options), HasSubstr("activations_above_bytes is 0"));
  options = Alone();
  options.nvme_paths.clear();
  EXPECT_THAT(Invalid(options), HasSubstr("need a tier below memory"));
  options = Alone();
  options.checkpoint = folder_.path();
  EXPECT_THAT(Invalid(options), HasSubstr("parameters = false leaves"));
  options = Alone();
  options.activations = false;
  EXPECT_THAT(Invalid(options), HasSubstr("leaves nothing to offload"));
}

struct LeastCase {
  bool parameters;
  int64_t minimum;
  const char* reason;
};

class LeastBudgetTest : public ActivationsRefusalTest,
                        public testing::WithParamInterface<LeastCase> {};

// Blocks of 4 KiB, one more for each tensor; a layer's weight has 16 KiB.
constexpr int64_t kLayer = ((4 + 1) + (1 + 1)) * 4096;
INSTANTIATE_TEST_SUITE_P(
    What, LeastBudgetTest,
    testing::Values(
        LeastCase{false, int64_t{5} * (4 + 1) * 4096,
                  ": 102400 for 5 of the least activations, 16384 bytes each"},
        LeastCase{true, int64_t{5} * (4 + 1) * 4096 + kLayer,
                  ": 102400 for 5 of the least activations, 16384 bytes each, "
                  "and 28672 that the operations of one module take, "
                  "'layers.0.weight' most of them"}));

TEST_P(LeastBudgetTest, IsAcceptedAndAByteLessIsRefusedWithTheReason) {
  OffloadOptions options = Alone();
  options.parameters = GetParam().parameters;
  options.memory_budget_bytes = GetParam().minimum - 1;
  EXPECT_THAT(Refused(absl::StatusCode::kResourceExhausted, options),
              AllOf(HasSubstr(absl::StrCat("below the minimum of ",
                                           GetParam().minimum, ": ")),
                    HasSubstr(GetParam().reason)));
  options.memory_budget_bytes = GetParam().minimum;
  Make(options);
  EXPECT_EQ(offload_->stats().minimum_bytes, GetParam().minimum);
  EXPECT_EQ(offload_->stats().budget_bytes, GetParam().minimum);
  // A hidden tensor of 64 tokens has 16 KiB.
  Below(1, /*rows=*/64).backward();
  Plain(1, /*rows=*/64).backward();
  EXPECT_GT(Saved().tensors, 0);
  ExpectSameGradients();
}

TEST_F(ActivationsRefusalTest, AModelOnADevice) {
  ASSERT_TRUE(MoveParametersToMeta(*plain_).ok());
  const absl::Status status = Offload::Create(*plain_, Alone()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is on meta"));
}

// As Python's.
struct OtherEngine final : Engine {
  ~OtherEngine() override { stop(); }
  static Engine& Get() {
    static OtherEngine engine;
    return engine;
  }
};

TEST_F(ActivationsRefusalTest, AnotherEngineOfAutograd) {
  static Engine& present = Engine::get_default_engine();
  ::torch::autograd::set_default_engine_stub(&OtherEngine::Get);
  EXPECT_THAT(Refused(absl::StatusCode::kUnimplemented, Alone()),
              HasSubstr("terrace.offload(model, activations=True)"));
  EXPECT_EQ(&Engine::get_default_engine(), &OtherEngine::Get());
  Make(Third());  // parameters alone are welcome
  ::torch::autograd::set_default_engine_stub(
      []() -> Engine& { return present; });
  offload_.reset();
  Make(Alone());
  Below(1).backward();
  EXPECT_EQ(Saved().tensors, kActivations);
}

}  // namespace
}  // namespace terrace
