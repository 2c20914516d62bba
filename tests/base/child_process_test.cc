#include "tests/support/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

ChildProcess Start(const std::string& command, double longest_seconds = 120) {
  return ChildProcess({"/bin/bash", "-c", command},
                      {.longest_seconds = longest_seconds});
}

TEST(ChildProcessTest, WhoHasRunForLongIsWaitedForAllTheSame) {
  ChildProcess child = Start("exec sleep 60", 1);
  absl::SleepFor(absl::Seconds(1.5));
  int asked = 0;
  EXPECT_TRUE(child.WaitUntil([&] { return ++asked > 1; }));
  EXPECT_TRUE(child.running());
}

TEST(ChildProcessTest, WhoIsWaitedForTooLongIsKilledAndTheErrorsSaySo) {
  ChildProcess child = Start("echo an error >&2; exec sleep 60", 3);
  EXPECT_FALSE(child.WaitUntil([] { return false; }));
  const ChildResult& result = child.Wait();
  EXPECT_EQ(result.exit_code, -1);
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_THAT(result.errors, HasSubstr("an error\n(killed: "));
}

TEST(ChildProcessTest, OfWhoEndsInTimeTheErrorsAreItsOwn) {
  ChildProcess child = Start("exit 3");
  EXPECT_EQ(child.Wait().exit_code, 3);
  EXPECT_THAT(child.Wait().errors, IsEmpty());
}

}  // namespace
}  // namespace terrace
