// A section on a terminal, and as JSON lines.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "bench/report/document.h"

namespace terrace::bench {
namespace {

nlohmann::json JsonOf(const Spread& spread) {
  return {spread.minimum, spread.median, spread.maximum};
}

void PrintLine(const nlohmann::json& line) {
  // What a drive calls itself need not be UTF-8.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

void PrintJson(const Section& section) {
  for (const RateRow& row : section.rates) {
    nlohmann::json line = {{"section", section.title},
                           {"name", row.name},
                           {"mib_per_second", JsonOf(row.rate)},
                           {"cpu_ms_per_gib", JsonOf(row.cpu)}};
    if (!row.note.empty()) line["note"] = row.note;
    PrintLine(line);
  }
  for (const RatioRow& row : section.ratios) {
    nlohmann::json line = {{"section", section.title},
                           {"subject", row.subject},
                           {"bound", row.bound},
                           {"of", row.figure},
                           {"ratio", JsonOf(row.ratio)}};
    if (row.bar) {
      line["bar"] = BarText(row);
      line["verdict"] = Verdict(row);
    }
    if (!row.note.empty()) line["note"] = row.note;
    PrintLine(line);
  }
}

}  // namespace

std::string Triple(const Spread& spread, int digits) {
  return absl::StrFormat("%.*f / %.*f / %.*f", digits, spread.minimum, digits,
                         spread.median, digits, spread.maximum);
}

std::string BarText(const RatioRow& row) {
  if (!row.bar) return "";
  return absl::StrFormat("%s %.2f",
                         row.bar->at_least ? ">=" : "<=", row.bar->limit);
}

std::string Verdict(const RatioRow& row) {
  if (!row.bar) return "";
  if (!row.void_reason.empty()) return "void: " + row.void_reason;
  return row.bar->Met(row.ratio.median) ? "met" : "missed";
}

void PrintSection(const Section& section, bool json) {
  if (json) {
    PrintJson(section);
  } else {
    std::printf("\n%s\n%s\n\n", section.title.c_str(), section.text.c_str());
    std::printf("  %-44s %-26s %s\n", "", "MiB/s (min med max)",
                "CPU ms/GiB (min med max)");
    for (const RateRow& row : section.rates) {
      std::printf("  %-44s %-26s %-24s %s\n", row.name.c_str(),
                  Triple(row.rate, 0).c_str(), Triple(row.cpu, 2).c_str(),
                  row.note.c_str());
    }
    std::printf("\n");
    for (const RatioRow& row : section.ratios) {
      std::printf("  %-6s %s / %s: %s %s %s  %s\n", row.figure.c_str(),
                  row.subject.c_str(), row.bound.c_str(),
                  Triple(row.ratio, 3).c_str(), BarText(row).c_str(),
                  Verdict(row).c_str(), row.note.c_str());
    }
  }
  std::fflush(stdout);
}

}  // namespace terrace::bench
