// Each call of a device fails once, whoever makes it: what fails says so, and
// nothing is lost that was elsewhere.
#include <optional>

#include "tests/libtorch/accelerator/device/device_hook_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DeviceSweepTest : public DeviceHookTest {
 protected:
  static constexpr size_t kTensors = 6;

  // Returns false when an error came out of it, which names the device.
  bool Tries(const std::function<void()>& operation) {
    try {
      operation();
      return true;
    } catch (const std::exception& error) {
      // The operation's own call, or one for a tensor that it takes.
      const std::string text = error.what();
      if (text.find("terrace:") != std::string::npos) {
        EXPECT_THAT(text, AllOf(HasSubstr("testdev:0"), HasSubstr("'t")));
      }
      ++errors_;
      return false;
    }
  }
  void Add(size_t at, double value) {
    const bool is_done = Tries([&] { tensors_[at].add_(value); });
    if (is_done) values_[at] += value;
  }
  // Operations of every kind, so that tensors come and go by each edge.
  void Train() {
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < kTensors; ++i) Add(i, 1);
      hook().EvictAll();
      hook().Prefetch({tensors_[0], tensors_[1]});
      for (size_t i = kTensors; i-- > 0;) Add(i, 2);
      absl::StatusOr<Lease> lease =
          hook().MakeLease(tensors_[2], Hook::Access::kRead);
      if (!lease.ok()) {
        EXPECT_THAT(std::string(lease.status().message()),
                    HasSubstr("testdev:0"));
        ++errors_;
      }
    }
  }
  // What an operation of this tensor says until it does not fail.
  void Read(size_t at) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      hook().Retry().IgnoreError();
      std::optional<double> mean;
      if (!Tries([&] { mean = MeanOf(tensors_[at]); })) continue;
      EXPECT_EQ(*mean, values_[at]) << "t" << at;
      return;
    }
    ADD_FAILURE() << "t" << at << " stays away: " << hook().error();
  }
  // Returns whether there is such a call.
  bool Sweep(int64_t call) {
    errors_ = 0;
    Make(/*on_device=*/3, /*in_memory=*/3);
    tensors_.clear();
    values_.clear();
    for (size_t i = 0; i < kTensors; ++i) {
      values_.push_back(static_cast<double>(i));
      tensors_.push_back(Filled("t" + std::to_string(i), values_.back()));
    }
    WaitForAll();
    streams().FailCall(call);
    Train();
    Tries(WaitForAll);
    const bool was_there = streams().calls() >= call;
    streams().FailCall(0);
    for (size_t i = 0; i < kTensors; ++i) Read(i);
    const absl::Status closed = hook().Close(Hook::AtClose::kRestore);
    EXPECT_TRUE(closed.ok()) << closed;
    for (size_t i = 0; i < kTensors; ++i) {
      EXPECT_EQ(MeanOf(tensors_[i]), values_[i]) << "t" << i;
    }
    tensors_.clear();
    Tries(WaitForAll);
    End();
    return was_there;
  }

  std::vector<at::Tensor> tensors_;
  std::vector<double> values_;  // of all elements, by the calls that succeeded
  int errors_ = 0;
};

TEST_F(DeviceSweepTest, EachCallFailsOnceAndNothingIsLost) {
  int64_t call = 1;
  int64_t told = 0;
  while (Sweep(call)) {
    told += errors_ > 0 ? 1 : 0;
    if (HasFailure()) FAIL() << "call " << call;
    ++call;
  }
  std::printf("%lld calls failed, of which %lld were told\n",
              static_cast<long long>(call - 1), static_cast<long long>(told));
  EXPECT_GT(call, 50);
}

}  // namespace
}  // namespace terrace
