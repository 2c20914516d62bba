#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "bench/report/document.h"

namespace terrace::bench {
namespace {

// Colours for both schemes; the six of the series differ in lightness too.
constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#57606a;
--line:#d8dee4;--band:#f6f8fa;--good:#116329;--bad:#b3261e;
--s0:#0b5cad;--s1:#c4520a;--s2:#1a7f4b;--s3:#7a3fb0;--s4:#8a6d00;--s5:#b0246b}
@media(prefers-color-scheme:dark){:root{--page:#14171c;--text:#e6e9ee;
--soft:#a3adb8;--line:#343b45;--band:#1d2229;--good:#5fd38a;--bad:#ff8b80;
--s0:#6cb2ff;--s1:#ffa05c;--s2:#63d297;--s3:#c79bff;--s4:#e3c34a;--s5:#ff8fc0}}
body{margin:0 auto;max-width:62rem;padding:1.5rem;background:var(--page);
color:var(--text);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.2rem 0 .4rem;
border-top:1px solid var(--line);padding-top:1.2rem}
p{max-width:48rem}.soft{color:var(--soft)}
code{font:13px/1.4 ui-monospace,monospace;background:var(--band);
padding:.1rem .3rem;border-radius:3px;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.8rem 0;
font-size:13.5px}th,td{padding:.28rem .7rem .28rem 0;text-align:left;
vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}td.n{font-variant-numeric:tabular-nums;
white-space:nowrap}.met{color:var(--good)}.missed{color:var(--bad);
font-weight:600}figure{margin:1rem 0}figcaption{font-weight:600;
margin-bottom:.3rem}svg{width:100%;max-width:720px;height:auto;display:block}
svg text{fill:var(--text);font:12px system-ui,sans-serif}
svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--soft)}
)";

std::string SeriesStyle() {
  std::string style;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&style, "svg .l", i, "{stroke:var(--s", i,
                    ");fill:none;stroke-width:2}svg .f", i, "{fill:var(--s", i,
                    ")}svg .e", i, "{stroke:var(--s", i, ")}\n");
  }
  return style;
}

std::string Cell(const std::string& text, const char* kind = "") {
  return absl::StrCat("<td", *kind == 0 ? "" : " class=\"", kind,
                      *kind == 0 ? ">" : "\">", EscapeHtml(text), "</td>");
}

std::string RatesOf(const Section& section) {
  std::string html =
      "<div class=\"wide\"><table><tr><th></th><th>MiB/s, min / median / max"
      "</th><th>CPU, ms per GiB</th><th></th></tr>\n";
  for (const RateRow& row : section.rates) {
    absl::StrAppend(&html, "<tr>", Cell(row.name),
                    Cell(Triple(row.rate, 0), "n"),
                    Cell(Triple(row.cpu, 2), "n"), Cell(row.note), "</tr>\n");
  }
  return html + "</table></div>\n";
}

std::string RatiosOf(const Section& section) {
  std::string html =
      "<div class=\"wide\"><table><tr><th>ratio</th><th>of</th>"
      "<th>min / median / max</th><th>bar</th><th></th><th></th></tr>\n";
  for (const RatioRow& row : section.ratios) {
    const std::string verdict = Verdict(row);
    const char* const kind = verdict == "met"  ? "met"
                             : verdict.empty() ? ""
                                               : "missed";
    absl::StrAppend(&html, "<tr>",
                    Cell(absl::StrCat(row.subject, " ÷ ", row.bound)),
                    Cell(row.figure), Cell(Triple(row.ratio, 3), "n"),
                    Cell(BarText(row), "n"), Cell(verdict, kind),
                    Cell(row.note), "</tr>\n");
  }
  return html + "</table></div>\n";
}

std::string MachineOf(const Document& document) {
  std::string html = "<div class=\"wide\"><table>\n";
  for (const auto& [label, value] : document.machine) {
    absl::StrAppend(&html, "<tr><th>", EscapeHtml(label), "</th>", Cell(value),
                    "</tr>\n");
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string ToHtml(const Document& document) {
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
      EscapeHtml(document.title), ", ", document.date, "</title>\n<style>",
      kStyle, SeriesStyle(), "</style></head><body>\n<h1>",
      EscapeHtml(document.title), "</h1>\n<p class=\"soft\">", document.date,
      " · <code>", EscapeHtml(document.command), "</code></p>\n",
      MachineOf(document));
  absl::StrAppend(&html,
                  "<p>Each contender runs once a round, in rotated order; the "
                  "first round is dropped. A ratio is of one round; figures "
                  "are min / median / max over the rounds. ",
                  EscapeHtml(document.conduct), "</p>\n");
  for (const Section& section : document.sections) {
    absl::StrAppend(&html, "<h2>", EscapeHtml(section.title), "</h2>\n<p>",
                    EscapeHtml(section.text), "</p>\n");
    for (const Chart& chart : section.charts) {
      absl::StrAppend(&html, "<figure><figcaption>", EscapeHtml(chart.title),
                      "</figcaption>", ToSvg(chart), "</figure>\n");
    }
    if (!section.ratios.empty()) absl::StrAppend(&html, RatiosOf(section));
    if (!section.rates.empty()) absl::StrAppend(&html, RatesOf(section));
  }
  return html + "</body></html>\n";
}

}  // namespace terrace::bench
