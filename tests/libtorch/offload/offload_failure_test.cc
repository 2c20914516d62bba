// Bytes that are gone, and a child without them.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(OffloadTest, AFetchThatFailsThrowsAndIsTold) {
  Make(Third());
  ExpectValues();
  EXPECT_TRUE(offload_->error().ok());
  std::filesystem::resize_file(offload_->stats().runtime.paths()[0].disk.file,
                               0);
  EXPECT_THAT(ThrownBy([&] {
                for (int pass = 0; pass < 2; ++pass) model_->forward(tokens_);
              }),
              StartsWith("terrace: '"));
  const absl::Status error = offload_->error();
  EXPECT_FALSE(error.ok());
  EXPECT_THAT(std::string(error.message()), HasSubstr(folder_.path()));
  EXPECT_GT(offload_->stats().hook.failures, 0);
  // Not all can be restored: the first of them is told, and it is closed.
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  EXPECT_FALSE(closed.ok());
  EXPECT_NE(closed.code(), absl::StatusCode::kFailedPrecondition) << closed;
  EXPECT_EQ(offload_->error(), error);
  EXPECT_GT(offload_->stats().hook.failures, 0);
  EXPECT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  EXPECT_TRUE(folder_.empty());
  EXPECT_THAT(ThrownBy([&] { model_->forward(tokens_); }),
              StartsWith("terrace: '"));
}

// 0: as it should be; else what is not.
int InChild(Offload& offload, TiedModel& model, const at::Tensor& tokens) {
  if (!absl::IsCancelled(offload.error())) return 1;
  if (!absl::IsCancelled(offload.Retry())) return 2;
  if (!absl::IsCancelled(offload.Close(Offload::AtClose::kRestore))) return 3;
  if (!absl::IsCancelled(
          offload.MakeLease(model->out, Offload::Access::kRead).status())) {
    return 4;
  }
  if (offload.stats().parameter_bytes != 0) return 5;
  offload.BeginStep();
  offload.Prefetch(model->parameters());
  const std::string thrown = ThrownBy([&] { model->forward(tokens); });
  return thrown.rfind("terrace: ", 0) == 0 ? 0 : 6;
}

TEST_F(OffloadTest, AForkedChildHasNothingAndDisturbsNothing) {
  Make(Third());
  ExpectValues();
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const int wrong = InChild(*offload_, model_, tokens_);
    offload_.reset();
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ExpectValues();
  EXPECT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectInMemory();
}

}  // namespace
}  // namespace terrace
