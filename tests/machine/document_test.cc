// docs/machine.md against what the programs write.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

// "a.b[].c" for each value that is no object and no list of objects.
void CollectKeys(const nlohmann::json& json, const std::string& prefix,
                 std::set<std::string>* keys) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      CollectKeys(value, prefix.empty() ? key : prefix + "." + key, keys);
    }
  } else if (json.is_array() && !json.empty() && json[0].is_object()) {
    for (const auto& value : json) CollectKeys(value, prefix + "[]", keys);
  } else {
    keys->insert(prefix);
  }
}

// The first column of the table under this heading, in backquotes.
std::set<std::string> DocumentedKeys(const std::string& heading) {
  std::ifstream file(MACHINE_DOCUMENT);
  std::set<std::string> keys;
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line.rfind("#", 0) == 0) inside = line == heading;
    if (inside && line.rfind("| `", 0) == 0) {
      keys.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  return keys;
}

std::set<std::string> KeysOf(const std::string& text) {
  std::set<std::string> keys;
  CollectKeys(nlohmann::json::parse(text), "", &keys);
  return keys;
}

TEST(DocumentTest, HasEachKeyOfAReportAndNoOther) {
  MachineReport report;
  report.processor.nodes.emplace_back();
  report.memory.pools.emplace_back();
  report.gpu.devices.emplace_back();
  report.paths.emplace_back().drives.emplace_back();
  report.tiers.emplace_back();
  report.findings.emplace_back();
  EXPECT_EQ(KeysOf(ToJson(report)), DocumentedKeys("## `--json`"));
}

TEST(DocumentTest, HasEachKeyOfAProfileAndNoOther) {
  MachineProfile profile;
  profile.paths.emplace_back().rates.emplace_back();
  profile.tiers.emplace_back();
  EXPECT_EQ(KeysOf(ToJson(profile)), DocumentedKeys("## Profile"));
}

}  // namespace
}  // namespace terrace
