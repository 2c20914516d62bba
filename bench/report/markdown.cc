#include "absl/strings/str_cat.h"
#include "bench/report/document.h"

namespace terrace::bench {
namespace {

std::string RateLines(const Section& section) {
  std::string text = "| | MiB/s | CPU ms/GiB | |\n|---|---|---|---|\n";
  for (const RateRow& row : section.rates) {
    absl::StrAppend(&text, "| ", row.name, " | ", Triple(row.rate, 0), " | ",
                    Triple(row.cpu, 2), " | ", row.note, " |\n");
  }
  return text;
}

std::string RatioLines(const Section& section) {
  std::string text =
      "| ratio | of | min / median / max | bar | |\n|---|---|---|---|---|\n";
  for (const RatioRow& row : section.ratios) {
    std::string last = Verdict(row);
    if (!row.note.empty()) {
      absl::StrAppend(&last, last.empty() ? "" : "; ", row.note);
    }
    absl::StrAppend(&text, "| ", row.subject, " ÷ ", row.bound, " | ",
                    row.figure, " | ", Triple(row.ratio, 3), " | ",
                    BarText(row), " | ", last, " |\n");
  }
  return text;
}

}  // namespace

std::string ToMarkdown(const Document& document) {
  std::string text =
      absl::StrCat("# ", document.title, ", ", document.date, "\n\nCommand: `",
                   document.command, "`\n\n| machine | |\n|---|---|\n");
  for (const auto& [label, value] : document.machine) {
    absl::StrAppend(&text, "| ", label, " | ", value, " |\n");
  }
  absl::StrAppend(&text,
                  "\nEach contender runs once a round, in rotated order; the "
                  "first round is dropped. A ratio\nis of one round; figures "
                  "are min / median / max over the rounds. ",
                  document.conduct, "\n");
  for (const Section& section : document.sections) {
    absl::StrAppend(&text, "\n## ", section.title, "\n\n", section.text, "\n");
    if (!section.rates.empty()) {
      absl::StrAppend(&text, "\n", RateLines(section));
    }
    if (!section.ratios.empty()) {
      absl::StrAppend(&text, "\n", RatioLines(section));
    }
  }
  return text;
}

}  // namespace terrace::bench
