// A load() that cannot be done, or that fails half-way.
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/libtorch/torch_fixture.h"
#include "tests/support/map_runtime.h"

namespace terrace {
namespace {

using ::torch::optim::AdamWParamState;
using ::torch::serialize::OutputArchive;

void Load(OutputArchive& archive, OffloadedAdamW& optimizer) {
  std::stringstream stream;
  archive.save_to(stream);
  ::torch::serialize::InputArchive input;
  input.load_from(stream);
  optimizer.load(input);
}

std::unique_ptr<OffloadedAdamW> MakeArchived(
    Runtime& runtime, const std::vector<at::Tensor>& parameters) {
  auto made = OffloadedAdamW::Create(runtime, parameters, SmallChunks());
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(TorchArchive, ALoadThatFailsHalfWayIsNotSteppedUntilOneSucceeds) {
  const auto executor = *MakePoolExecutor(1, {});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> expected = MakeParameters(dtype);
    const auto runtime = MakeRuntime();
    const auto undisturbed = MakeArchived(*runtime, expected);
    DrawGradients(1, expected);
    undisturbed->step();
    OutputArchive archive;
    undisturbed->save(archive);

    const std::vector<at::Tensor> parameters = CopiesOf(expected, dtype);
    MapRuntime faulty({.budget_bytes = 512 << 10}, SystemClock(), *executor);
    const auto optimizer = MakeArchived(faulty, parameters);
    DrawGradients(2, parameters);
    int64_t call = 0;
    for (;; ++call) {
      SCOPED_TRACE(absl::StrCat(toString(dtype), ", call ", call));
      const int64_t from = faulty.calls();
      faulty.set_fault([&](const MapRuntime::Call& now) {
        return now.index - from == call
                   ? absl::UnknownError("read failed: path 0: EIO")
                   : absl::OkStatus();
      });
      bool failed = false;
      try {
        Load(archive, *optimizer);
      } catch (const c10::Error& error) {
        failed = true;
        EXPECT_THAT(std::string(error.what()), testing::HasSubstr("EIO"));
      }
      faulty.set_fault(nullptr);
      if (!failed) break;
      const absl::Status refused = optimizer->TryStep();
      ASSERT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  testing::HasSubstr("load it again"));
      EXPECT_FALSE(optimizer->StateOf(parameters[0]).ok());
      EXPECT_THROW(
          {
            OutputArchive half;
            optimizer->save(half);
          },
          c10::Error);
    }
    EXPECT_GT(call, 10);
    optimizer->step();
    DrawGradients(2, expected);
    undisturbed->step();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(SameBits(parameters[i], expected[i])) << i;
    }
  }
}

TEST(TorchArchive, StateThatNoStepCanUseIsRefusedAndChangesNothing) {
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> parameters = MakeParameters();
  const auto ours = MakeArchived(*runtime, parameters);
  DrawGradients(1, parameters);
  ours->step();
  const auto before = ours->StateOf(parameters[0]);
  ASSERT_TRUE(before.ok()) << before.status();
  const auto refused = [&](absl::FunctionRef<void(AdamWParamState&)> change,
                           int64_t step) {
    const std::vector<at::Tensor> others = MakeParameters();
    ::torch::optim::AdamW theirs(others);
    DrawGradients(2, others);
    theirs.step();
    change(static_cast<AdamWParamState&>(
        *theirs.state().at(others[4].unsafeGetTensorImpl())));
    OutputArchive archive;
    theirs.save(archive);
    archive.write("terrace_step", c10::IValue(step));
    EXPECT_THROW(Load(archive, *ours), c10::Error);
    const auto after = ours->StateOf(parameters[0]);
    EXPECT_TRUE(after.ok() && after->step == 1 &&
                SameBits(after->exp_avg, before->exp_avg));
  };
  using State = AdamWParamState;
  refused([](State& state) { state.step(-1); }, 1);
  refused([](State& state) { state.exp_avg(at::ones({1, 40'013})); }, 1);
  refused([](State& state) { state.exp_avg_sq(at::ones({40'013}, at::kInt)); },
          1);
  refused(
      [](State& state) {
        state.exp_avg(at::ones({40'013}, at::kComplexFloat));
      },
      1);
  refused([](State&) {}, -1);
}

}  // namespace
}  // namespace terrace
