// Puts a `terraced` of each test between its models and their directory.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/libtorch/offload_folder.h"

namespace terrace {
namespace {

class StartedDaemon final : public OffloadDaemon {
 public:
  explicit StartedDaemon(const std::string& directory)
      : daemon_("", SettingOver(directory)) {
    EXPECT_TRUE(daemon_.Serves()) << daemon_.Wait().errors;
  }
  ~StartedDaemon() override {
    const ChildResult& end = daemon_.End();
    EXPECT_EQ(end.exit_code, 0) << end.signal << "\n" << end.errors;
  }

  std::string socket() const override { return "unix:" + daemon_.socket(); }
  pid_t pid() const override { return daemon_.pid(); }

 private:
  // More than any test has of either.
  static RunningDaemon::Setting SettingOver(const std::string& directory) {
    return {// A limit of its files' sizes is an error that it hears of.
            .before = "trap '' XFSZ",
            .tiers = absl::StrCat("'dram=1GiB', 'nvme:", directory, "=1GiB'")};
  }

  RunningDaemon daemon_;
};

std::unique_ptr<OffloadDaemon> StartDaemon(const std::string& directory) {
  return std::make_unique<StartedDaemon>(directory);
}

const bool is_set = (offload_daemon = &StartDaemon, true);

}  // namespace
}  // namespace terrace
