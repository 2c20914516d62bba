// With a model offloaded and its optimizer joined no thread wakes where nothing
// is to be done; nor while a late step waits. In a process of its own, as it
// looks at all of the process's threads.
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/threads/own_thread.h"
#include "tests/libtorch/offload/joined_fixture.h"
#include "tests/runtime/quiet_threads.h"

namespace terrace {
namespace {

class IdleTorchTest : public JoinedTest {};

TEST_F(IdleTorchTest, NothingWakesWhereNothingIsToBeDone) {
  MakeJoined(Share(0.4));
  optimizer_->set_overlap(true);
  for (int64_t step = 1; step <= 2; ++step) {
    optimizer_->zero_grad();
    TwoPasses(model_, step);
    const absl::Status status = optimizer_->TryStep();
    ASSERT_TRUE(status.ok()) << status;
  }
  model_->forward(tokens_);
  ExpectQuiet({"terrace-mover", "terrace-exec", "terrace-files"});
  ASSERT_TRUE(optimizer_->Flush().ok());
}

// The step lacks a chunk that another customer has, as it would one that a
// tier does not bring.
TEST_F(IdleTorchTest, NothingWakesWhileALateStepWaitsAndAnOperationForIt) {
  std::vector<at::Tensor> parameters = MakeParameters();
  const auto runtime = MakeRuntime();
  auto made = OffloadedAdamW::Create(*runtime, parameters, SmallChunks());
  ASSERT_TRUE(made.ok()) << made.status();
  OffloadedAdamW& optimizer = **made;
  optimizer.set_overlap(true);
  DrawGradients(1, parameters);
  ASSERT_TRUE(optimizer.TryStep().ok());
  ASSERT_TRUE(optimizer.Flush().ok());
  absl::StatusOr<Pin> held = runtime->Acquire(TensorId{0}, Access::kUpdate,
                                              absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(held.ok()) << held.status();
  DrawGradients(2, parameters);
  const at::Tensor before = parameters[0].detach().clone();
  ASSERT_TRUE(optimizer.TryStep().ok());
  ExpectQuiet({"terrace-late", "terrace-mover"});
  std::thread forward = StartThread("terrace-forward", [&] {
    EXPECT_FALSE(parameters[0].detach().equal(before));
  });
  ExpectQuiet({"terrace-late", "terrace-forward"});
  held->ReleaseUnchanged();
  forward.join();
  EXPECT_TRUE(optimizer.Flush().ok());
}

}  // namespace
}  // namespace terrace
