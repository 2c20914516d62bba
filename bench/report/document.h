// What was measured, apart from how it is shown: sections of measured rates,
// ratios with their bars, and charts. bench/report/ shows a document as text,
// JSON lines, Markdown and one HTML page.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness.h"

namespace terrace::bench {

struct Bar {
  double limit = 0;
  bool at_least = true;  // else at most
  bool Met(double value) const {
    return at_least ? value >= limit : value <= limit;
  }
};

// A contender's own figures.
struct RateRow {
  std::string name;
  Spread rate;  // MiB/s
  Spread cpu;   // ms/GiB
  std::string note;
};

// One compared with another, within rounds; or with what it may be at most.
struct RatioRow {
  std::string subject;
  std::string bound;
  std::string figure;  // what is divided: "MiB/s", "CPU ms/GiB", "p99"
  Spread ratio;
  std::optional<Bar> bar;
  std::string note;
  // Not a verdict: what would make the bar meaningless here. Empty: none.
  std::string void_reason;
};

struct Point {
  double x = 0;  // kLines: the index of a category
  double y = 0;
  double low = 0;
  double high = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;
};

struct Chart {
  enum class Kind {
    kLines,  // over categories, with the spread of each point
    kBars,   // a group for each category
    kSteps,  // a histogram over a logarithmic axis
  };
  Kind kind = Kind::kLines;
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> categories;
  std::vector<Series> series;
};

struct Section {
  std::string title;
  std::string text;  // what was done, in a sentence or two
  std::vector<RateRow> rates;
  std::vector<RatioRow> ratios;
  std::vector<Chart> charts;
};

struct Document {
  std::string title;
  std::string date;     // YYYY-MM-DD
  std::string command;  // that makes it again
  std::vector<std::pair<std::string, std::string>> machine;
  std::string conduct;  // what the gate did
  std::vector<Section> sections;
};

// "2080 / 2135 / 2174".
std::string Triple(const Spread& spread, int digits);

// "met", "missed", "void: why", or empty without a bar; of the median.
std::string Verdict(const RatioRow& row);

// ">= 0.97", or empty.
std::string BarText(const RatioRow& row);

// A section as a table or as JSON lines, to standard output.
void PrintSection(const Section& section, bool json);

std::string ToMarkdown(const Document& document);

// One self-contained page: no script, no network, plots in SVG.
std::string ToHtml(const Document& document);

// A chart as an SVG element, 720 wide. Colours are classes of the page's
// style sheet.
std::string ToSvg(const Chart& chart);

// Escapes for HTML's text and attributes.
std::string EscapeHtml(const std::string& text);

}  // namespace terrace::bench
