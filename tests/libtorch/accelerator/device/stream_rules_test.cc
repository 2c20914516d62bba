// Each rule of streams (stream_rules.h): a program that needs it is reported as
// soon as the rule is off, and never else. That of an allocation is in
// torch_device_test.cc, as a hook's first copy is on the home stream.
#include <functional>

#include "tests/libtorch/accelerator/device/device_hook_fixture.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

class StreamRulesTest : public DeviceHookTest {
 protected:
  // Others take the place of what has left: two at a time, which is all room.
  void Fillers() {
    for (size_t i = 1; i < fillers_.size(); ++i) {
      fillers_[i].add_(fillers_[i - 1]);
    }
  }
  at::Tensor AliasOf(void* address) {
    return at::for_blob(address, {kNumbers})
        .options(OnDevice())
        .target_device(kDevice)
        .make_tensor();
  }
  // The reports of a program without the rule; none may come of it with all.
  // Threads may by chance wait for what the rule would have had them wait for:
  // the program then runs again.
  std::vector<std::string> ReportsWithout(
      StreamRule rule, const std::function<void()>& program) {
    StreamRules::SetForTest({});
    Run(program);
    EXPECT_THAT(TakeReports(), IsEmpty());
    StreamRules::SetForTest(StreamRules().Without(rule));
    std::vector<std::string> reports;
    for (int attempt = 0; attempt < 5 && reports.empty(); ++attempt) {
      Run(program);
      reports = TakeReports();
    }
    return reports;
  }

 private:
  void Run(const std::function<void()>& program) {
    Make(2, 8);
    for (int i = 0; i < 3; ++i) {
      fillers_.push_back(Filled("filler " + std::to_string(i), 9));
    }
    hook().EvictAll();
    WaitForAll();
    program();
    fillers_.clear();
    WaitForAll();
    End();
  }

  std::vector<at::Tensor> fillers_;
};

TEST_F(StreamRulesTest, ACopyIsWaitedForBeforeItsBytesAreShown) {
  const auto reports = ReportsWithout(StreamRule::kUseWaitsForCopy, [this] {
    const at::Tensor tensor = Filled("t", 3);
    hook().EvictAll();
    Fillers();
    tensor.add_(1);
  });
  EXPECT_THAT(reports, Not(IsEmpty()));
}

TEST_F(StreamRulesTest, EachStreamIsNoted) {
  const auto reports = ReportsWithout(StreamRule::kEachStreamIsNoted, [this] {
    const at::Tensor tensor = Filled("t", 3);
    Order(kHome, kSide);
    {
      const c10::StreamGuard guard(kSide);
      tensor.add_(1);
    }
    hook().EvictAll();
    Fillers();
    Order(kSide, kHome);
  });
  EXPECT_THAT(reports, Not(IsEmpty()));
}

TEST_F(StreamRulesTest, ASliceIsHeldForItsEvents) {
  const auto reports =
      ReportsWithout(StreamRule::kSliceIsHeldForItsEvents, [this] {
        const at::Tensor tensor = Filled("t", 3);
        tensor.add_(1);
        hook().EvictAll();
        Fillers();
      });
  EXPECT_THAT(reports, Not(IsEmpty()));
}

TEST_F(StreamRulesTest, ALeaseIsAUse) {
  const auto reports = ReportsWithout(StreamRule::kLeaseIsAUse, [this] {
    const at::Tensor tensor = Filled("t", 3);
    hook().EvictAll();
    Fillers();
    {
      absl::StatusOr<Lease> lease =
          hook().MakeLease(tensor, Hook::Access::kWrite);
      ASSERT_TRUE(lease.ok()) << lease.status();
      AliasOf(lease->data().data()).mul_(2);
    }
    hook().EvictAll();
    Fillers();
  });
  EXPECT_THAT(reports, Not(IsEmpty()));
}

TEST_F(StreamRulesTest, TheBlockThatIsTakenOverIsRecorded) {
  const auto reports =
      ReportsWithout(StreamRule::kTakenBlockIsRecorded, [this] {
        at::Tensor tensor = at::full({kNumbers}, 3, OnDevice());
        Order(kHome, kSide);
        {
          const c10::StreamGuard guard(kSide);
          Managed("t", tensor);
        }
        // Its memory is the home stream's to have again.
        at::empty({kNumbers}, OnDevice()).fill_(1);
        Order(kSide, kHome);
      });
  EXPECT_THAT(reports, Not(IsEmpty()));
}

}  // namespace
}  // namespace terrace
