// docs/deepspeed.md lists every key with its treatment, as the table has it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "terrace/zero_config.h"

namespace terrace::zero_config_test {
namespace {

std::string RowOf(const ZeroConfigKey& key) {
  const std::string fallback =
      key.fallback == "null" ? "" : absl::StrCat("`", key.fallback, "`");
  return absl::StrCat("| `", key.path, "` | ", key.allowed, " | ", fallback,
                      " | ", key.treatment, " | ", key.why, " |");
}

TEST(Document, HasARowForEachKeyAndNoOther) {
  std::ifstream file(TERRACE_SOURCE_DIR "/docs/deepspeed.md");
  ASSERT_TRUE(file.is_open());
  std::vector<std::string> have, want;
  bool keys = false;  // below that heading
  for (std::string line; std::getline(file, line);) {
    keys = keys || line == "## Keys";
    if (keys && line.rfind("| `", 0) == 0) have.push_back(line);
  }
  for (const ZeroConfigKey& key : ZeroConfigKeys()) want.push_back(RowOf(key));
  for (size_t i = 0; i < std::max(have.size(), want.size()); ++i) {
    ASSERT_EQ(i < have.size() ? have[i] : "(no row)",
              i < want.size() ? want[i] : "(no key)");
  }
}

}  // namespace
}  // namespace terrace::zero_config_test
