// A step's copies from and to a device are polled by Advance: no task is handed
// to the executor before what it reads has arrived, and none waits.
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizer/device_training.h"
#include "tests/optimizer/training.h"
#include "tests/support/device/virtual_device.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

// One parameter on a device in virtual time, whose step a test turns by hand.
class PolledCopiesTest : public testing::Test {
 protected:
  PolledCopiesTest() { Make(SmallChunks()); }
  ~PolledCopiesTest() override {
    optimizer_.reset();
    EXPECT_THAT(runtime_.violations(), testing::IsEmpty());
    EXPECT_EQ(runtime_.pins(), 0);
    EXPECT_THAT(device_.bytes().violations(), testing::IsEmpty());
  }

  void Make(const OptimizerOptions& options) {
    optimizer_.reset();
    reference_ = std::make_unique<ReferenceOptimizer>(model_, options);
    auto made = OffloadedOptimizer::Create(runtime_, model_.specs(), options);
    ASSERT_TRUE(made.ok()) << made.status();
    optimizer_ = *std::move(made);
  }
  void Begin(const StepArguments& arguments = {}) {
    model_.DrawGradients(1);
    reference_->Step(arguments, model_);
    const ModelParameter& parameter = model_.parameters()[0];
    Upload(parameter_, BytesOf(parameter.values));
    Upload(gradient_, BytesOf(parameter.gradient));
    copies_ = device_.script().calls(DeviceCallKind::kToHost);
    data_ = {parameter_.get(), gradient_.get(), DType::kFloat32, &device_};
    ASSERT_TRUE(optimizer_->Start(arguments, {&data_, 1}).ok());
  }
  void Upload(const DeviceMemory& to, const std::vector<std::byte>& bytes) {
    const auto stream = *device_.MakeStream();
    ASSERT_TRUE(stream
                    ->CopyToDevice(to.get(), bytes.data(),
                                   static_cast<int64_t>(bytes.size()))
                    .ok());
    ASSERT_TRUE(stream->Wait().ok());
  }
  // Until all copies that are under way have ended.
  void Arrive() {
    while (clock_.Advance()) {
    }
  }
  int64_t begun() {
    return device_.script().calls(DeviceCallKind::kToHost) - copies_;
  }
  void ExpectStepped() {
    EXPECT_TRUE(optimizer_->result().ok()) << optimizer_->result();
    Values& values = model_.parameters()[0].values;
    const auto stream = *device_.MakeStream();
    const int64_t bytes = values.count() * DTypeBytes(values.dtype());
    ASSERT_TRUE(
        stream->CopyToHost(values.data(), parameter_.get(), bytes).ok());
    ASSERT_TRUE(stream->Wait().ok());
    EXPECT_EQ(reference_->Difference(model_), "");
  }

  static constexpr int64_t kElements = 3001;

  VirtualClock clock_;
  InlineExecutor executor_{2};
  VirtualDevice device_{clock_, {}};
  Model model_ = Model::Of({{"p", DType::kFloat32, kElements}}, 3);
  MapRuntime runtime_{{.budget_bytes = 1 << 20}, clock_, executor_};
  std::unique_ptr<ReferenceOptimizer> reference_;
  DeviceMemory parameter_ = *device_.Allocate(kElements * 4);
  DeviceMemory gradient_ = *device_.Allocate(kElements * 4);
  ParameterData data_;
  int64_t copies_ = 0;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST_F(PolledCopiesTest, AnUpdateRunsBetweenItsCopiesAndNoTaskWaits) {
  Begin();
  EXPECT_FALSE(optimizer_->Advance());
  EXPECT_EQ(begun(), 2);  // parameter and gradient
  EXPECT_EQ(executor_.waiting(), 0u);
  EXPECT_FALSE(optimizer_->Advance());
  EXPECT_EQ(executor_.waiting(), 0u);

  Arrive();
  EXPECT_FALSE(optimizer_->Advance());
  EXPECT_GT(executor_.waiting(), 0u);
  const int64_t before = device_.script().calls(DeviceCallKind::kToDevice);
  executor_.RunAll();
  EXPECT_EQ(device_.script().calls(DeviceCallKind::kToDevice), before + 1);
  EXPECT_FALSE(optimizer_->Advance());  // on their way back
  EXPECT_EQ(executor_.waiting(), 0u);
  EXPECT_EQ(runtime_.pins(), 0);

  Arrive();
  EXPECT_TRUE(optimizer_->Advance());
  ExpectStepped();
}

TEST_F(PolledCopiesTest, ANormsTasksComeOnceTheirSlicesHaveArrived) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 0.1;
  Make(options);
  Begin();
  EXPECT_FALSE(optimizer_->Advance());
  EXPECT_EQ(begun(), 1);  // the gradient alone
  EXPECT_EQ(executor_.waiting(), 0u);
  Arrive();
  EXPECT_FALSE(optimizer_->Advance());
  EXPECT_EQ(executor_.RunAll(), 1);
  bool done = false;
  for (int i = 0; i < 10 && !done; ++i) {
    done = optimizer_->Advance();
    executor_.RunAll();
    Arrive();
  }
  EXPECT_TRUE(done);
  ExpectStepped();
}

// Its slots hold what is on its way: it waits for that.
TEST_F(PolledCopiesTest, DestroyedInAnyPhaseItLeavesNoCopyUnderWay) {
  for (int phase = 0; phase < 4; ++phase) {
    Make(SmallChunks());
    Begin();
    if (phase > 0) optimizer_->Advance();
    if (phase > 1) Arrive();
    if (phase > 1) optimizer_->Advance();
    if (phase > 2) executor_.RunAll();
    // Tasks that were handed over end by themselves, here at once.
    clock_.AddStep([this] {
      executor_.RunAll();
      return absl::InfiniteFuture();
    });
    optimizer_.reset();  // a stream that goes with copies ends the test
  }
}

}  // namespace
}  // namespace terrace
