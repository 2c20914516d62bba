// The report's JSON is the one list of what a report has; the table shows that
// list in words, so that docs/machine.md explains both.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/bytes.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/table.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Count(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

bool IsNumbers(const Json& list) {
  return !list.empty() && list[0].is_number_integer();
}

bool IsObjects(const Json& list) {
  return list.is_array() && !list.empty() && list[0].is_object();
}

// "0-3 8" of ascending numbers.
std::string RangesText(const Json& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    const auto first = numbers[i].get<int64_t>();
    size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1] == numbers[last].get<int64_t>() + 1) {
      ++last;
    }
    absl::StrAppend(&text, text.empty() ? "" : " ", first);
    if (last > i) absl::StrAppend(&text, "-", numbers[last].get<int64_t>());
    i = last + 1;
  }
  return text;
}

std::string ListText(const Json& list) {
  if (IsNumbers(list)) return RangesText(list);
  std::string text;
  for (const Json& each : list) {
    absl::StrAppend(&text, text.empty() ? "" : " ", each.get<std::string>());
  }
  return text;
}

// The value in words; its key ends in its unit.
std::string ValueText(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return ListText(value);
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_number()) return "";
  if (absl::StrContains(key, "_bytes"))
    return FormatBytes(value.get<int64_t>());
  if (absl::EndsWith(key, "_share")) {
    return absl::StrFormat("%.0f %%", 100 * value.get<double>());
  }
  return value.dump();
}

std::string Words(const std::string& key) {
  return absl::StrReplaceAll(key, {{"_bytes", ""}, {"_", " "}});
}

// "locked limit 8 MiB", "direct io yes"; nothing of what is unknown.
std::string FieldText(const std::string& key, const Json& value) {
  const std::string text = ValueText(key, value);
  return text.empty() ? "" : absl::StrCat(Words(key), " ", text);
}

// A row of what the object is called, which can be copied, a row of its other
// fields, and rows of the objects within.
void AddObject(std::string label, const Json& object, Table* table) {
  const std::string inner = absl::StartsWith(label, " ") ? "    " : "  ";
  std::vector<std::string> fields;
  for (const auto& [key, value] : object.items()) {
    if (key == "path" || key == "name") {
      table->AddWhole(std::exchange(label, ""), ValueText(key, value));
    } else if (!IsObjects(value)) {
      fields.push_back(FieldText(key, value));
    }
  }
  table->Add(label, Join(fields, ", "));
  for (const auto& [key, value] : object.items()) {
    if (!IsObjects(value)) continue;
    for (const Json& each : value) {
      AddObject(absl::StrCat(inner, Words(key).substr(0, key.size() - 1)), each,
                table);
    }
  }
}

void AddFacts(const Json& report, Table* table) {
  for (const auto& [key, value] : report.items()) {
    if (key == "format" || key == "usable" || key == "findings") continue;
    if (value.is_object()) {
      AddObject(Words(key), value, table);
    } else if (value.is_array()) {
      for (const Json& each : value) {
        AddObject(Words(key).substr(0, key.size() - 1), each, table);
      }
    } else {
      table->Add(Words(key), ValueText(key, value));
    }
  }
}

std::string Verdict(const MachineReport& report) {
  int64_t missing = 0;
  int64_t slower = 0;
  for (const Finding& finding : report.findings) {
    missing += finding.severity == Severity::kMissing;
    slower += finding.severity == Severity::kSlower;
  }
  std::string verdict = "verdict: ";
  absl::StrAppend(&verdict,
                  missing > 0
                      ? absl::StrCat("not usable, ", missing,
                                     missing == 1 ? " necessary thing missing"
                                                  : " necessary things missing")
                      : "usable");
  absl::StrAppend(&verdict, slower > 0
                                ? absl::StrCat(", ", Count(slower, "thing"),
                                               slower == 1 ? " costs" : " cost",
                                               " speed or safety")
                                : ", nothing costs speed");
  return verdict + "\n";
}

}  // namespace

std::string FormatReport(const MachineReport& report, int width) {
  Table facts;
  AddFacts(Json::parse(ToJson(report)), &facts);
  Table findings;
  for (const Finding& finding : report.findings) {
    findings.Add(SeverityName(finding.severity),
                 absl::StrCat(finding.subject, ": ", finding.what));
    findings.AddWhole("  mend", finding.command);
  }
  return absl::StrCat(facts.Format(width), "\n", findings.Format(width), "\n",
                      Verdict(report));
}

}  // namespace terrace::cli
