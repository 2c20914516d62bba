// Three kinds of chart, drawn plainly: axes with units, a grid to read values
// from, a legend, and the spread of what was measured.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/report/document.h"

namespace terrace::bench {
namespace {

constexpr double kWidth = 720;
constexpr double kLeft = 64;
constexpr double kRight = 700;
constexpr double kTop = 40;
constexpr double kBottom = 300;
constexpr int kColours = 6;

std::string Open(double height) {
  return absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">", kWidth,
                         height);
}

std::string Text(double x, double y, const char* anchor,
                 const std::string& text, const char* kind = "") {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>",
      x, y, anchor, kind, EscapeHtml(text));
}

std::string Line(double x1, double y1, double x2, double y2,
                 const std::string& kind) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>",
      x1, y1, x2, y2, kind);
}

// 1, 2 or 5 times a power of ten, so that about five fit.
double TickOf(double largest) {
  if (largest <= 0) return 1;
  const double rough = largest / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power) return step * power;
  }
  return 10 * power;
}

std::string NumberOf(double value) {
  if (value == 0 || std::abs(value) >= 10) {
    return absl::StrFormat("%.0f", value);
  }
  return absl::StrFormat(value >= 1 ? "%.3g" : "%.2g", value);
}

double LargestOf(const Chart& chart) {
  double largest = 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      largest = std::max({largest, point.y, point.high});
    }
  }
  return largest;
}

std::string Legend(const Chart& chart, double x) {
  std::string svg;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const std::string& name = chart.series[i].name;
    absl::StrAppend(&svg,
                    absl::StrFormat("<rect x=\"%.1f\" y=\"8\" width=\"12\" "
                                    "height=\"12\" class=\"f%d\"/>",
                                    x, static_cast<int>(i) % kColours),
                    Text(x + 17, 18, "start", name));
    x += 40 + 6.6 * static_cast<double>(name.size());
  }
  return svg;
}

struct Scale {
  double top = 1;  // the largest value shown
  double tick = 1;
  double Y(double value) const {
    return kBottom - (kBottom - kTop) * value / top;
  }
};

std::string Frame(const Chart& chart, const Scale& scale) {
  std::string svg;
  for (double value = 0; value <= scale.top * 1.0001; value += scale.tick) {
    absl::StrAppend(
        &svg, Line(kLeft, scale.Y(value), kRight, scale.Y(value), "grid"),
        Text(kLeft - 8, scale.Y(value) + 4, "end", NumberOf(value), "soft"));
  }
  absl::StrAppend(
      &svg, Line(kLeft, kBottom, kRight, kBottom, "axis"),
      Text((kLeft + kRight) / 2, kBottom + 40, "middle", chart.x_label),
      absl::StrFormat("<text transform=\"translate(14 %.1f) "
                      "rotate(-90)\" text-anchor=\"middle\">%s"
                      "</text>",
                      (kTop + kBottom) / 2, EscapeHtml(chart.y_label)));
  return svg;
}

Scale ScaleOf(const Chart& chart) {
  Scale scale;
  const double largest = LargestOf(chart);
  scale.tick = TickOf(largest);
  scale.top =
      std::max(scale.tick, std::ceil(largest / scale.tick) * scale.tick);
  return scale;
}

std::string Lines(const Chart& chart) {
  const Scale scale = ScaleOf(chart);
  const double step =
      (kRight - kLeft) / static_cast<double>(chart.categories.size());
  // Series side by side by a little, so that their spreads can be told apart.
  const auto x_of = [&](size_t series, double category) {
    const double aside = (static_cast<double>(series) -
                          static_cast<double>(chart.series.size() - 1) / 2) *
                         5;
    return kLeft + step * (category + 0.5) + aside;
  };
  std::string svg =
      Open(kBottom + 50) + Legend(chart, kLeft) + Frame(chart, scale);
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    absl::StrAppend(
        &svg, Text(kLeft + step * (static_cast<double>(i) + 0.5), kBottom + 18,
                   "middle", chart.categories[i], "soft"));
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const int colour = static_cast<int>(i) % kColours;
    std::string path;
    std::string marks;
    for (const Point& point : chart.series[i].points) {
      const double x = x_of(i, point.x);
      absl::StrAppend(
          &path, absl::StrFormat("%s%.1f %.1f", path.empty() ? "M" : "L", x,
                                 scale.Y(point.y)));
      absl::StrAppend(
          &marks,
          Line(x, scale.Y(point.low), x, scale.Y(point.high),
               absl::StrCat("e", colour)),
          absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" "
                          "class=\"f%d\"><title>%s</title></circle>",
                          x, scale.Y(point.y), colour,
                          EscapeHtml(absl::StrCat(
                              chart.series[i].name, ", ",
                              chart.categories[static_cast<size_t>(point.x)],
                              ": ", NumberOf(point.y)))));
    }
    absl::StrAppend(&svg, "<path d=\"", path, "\" class=\"l", colour, "\"/>",
                    marks);
  }
  return svg + "</svg>";
}

std::string Bars(const Chart& chart) {
  constexpr double kBar = 13;
  constexpr double kGap = 12;
  constexpr double kLetter = 6.6;  // on average
  double left = 0;                 // room for the longest name
  for (const std::string& name : chart.categories) {
    left = std::max(left, 20 + kLetter * static_cast<double>(name.size()));
  }
  left = std::min(left, kRight / 2);
  const double tick = TickOf(LargestOf(chart));
  const double top = std::max(tick, std::ceil(LargestOf(chart) / tick) * tick);
  // Room behind the longest bar for its number.
  const auto x_of = [&](double value) {
    return left + (kRight - 40 - left) * value / top;
  };
  const double group = kBar * static_cast<double>(chart.series.size()) + kGap;
  const double bottom =
      kTop + group * static_cast<double>(chart.categories.size());
  std::string svg = Open(bottom + 50) + Legend(chart, 16);
  for (double value = 0; value <= top * 1.0001; value += tick) {
    absl::StrAppend(
        &svg, Line(x_of(value), kTop, x_of(value), bottom, "grid"),
        Text(x_of(value), bottom + 18, "middle", NumberOf(value), "soft"));
  }
  absl::StrAppend(
      &svg, Text((left + kRight) / 2, bottom + 40, "middle", chart.x_label));
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    const double y = kTop + group * static_cast<double>(i);
    absl::StrAppend(
        &svg, Text(left - 10, y + group / 2 + 1, "end", chart.categories[i]));
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const int colour = static_cast<int>(i) % kColours;
    for (const Point& point : chart.series[i].points) {
      const double y =
          kTop + kGap / 2 + group * point.x + kBar * static_cast<double>(i);
      absl::StrAppend(
          &svg,
          absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                          "height=\"%.1f\" class=\"f%d\"/>",
                          left, y, x_of(point.y) - left, kBar - 2, colour),
          Line(x_of(point.low), y + kBar / 2 - 1, x_of(point.high),
               y + kBar / 2 - 1, "axis"),
          Text(x_of(std::max(point.y, point.high)) + 6, y + kBar - 3, "start",
               NumberOf(point.y), "soft"));
    }
  }
  return svg + Line(left, kTop, left, bottom, "axis") + "</svg>";
}

// Whole decades around every step that has something in it.
std::pair<double, double> DecadesOf(const Chart& chart) {
  double low = 1e9;
  double high = 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (point.y <= 0) continue;
      low = std::min(low, point.x);
      high = std::max(high, point.x);
    }
  }
  if (high == 0) return {0.1, 10};
  return {std::pow(10, std::floor(std::log10(low) + 1e-9)),
          std::pow(10, std::floor(std::log10(high) + 1e-9) + 1)};
}

std::string Steps(const Chart& chart) {
  const Scale scale = ScaleOf(chart);
  const auto [low, high] = DecadesOf(chart);
  const auto x_of = [low = low, high = high](double value) {
    return kLeft +
           (kRight - kLeft) * std::log10(value / low) / std::log10(high / low);
  };
  std::string svg =
      Open(kBottom + 50) + Legend(chart, kLeft) + Frame(chart, scale);
  for (double decade = low; decade <= high * 1.0001; decade *= 10) {
    for (const double part : {1.0, 2.0, 5.0}) {
      const double value = decade * part;
      if (value > high * 1.0001) break;
      absl::StrAppend(
          &svg, Line(x_of(value), kTop, x_of(value), kBottom, "grid"),
          Text(x_of(value), kBottom + 18, "middle", NumberOf(value), "soft"));
    }
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const auto& points = chart.series[i].points;
    std::string path;
    for (size_t at = 0; at < points.size(); ++at) {
      if (points[at].x < low * 0.999 || points[at].x >= high * 0.999) continue;
      const double end = at + 1 < points.size() ? points[at + 1].x : high;
      absl::StrAppend(
          &path, absl::StrFormat("%s%.1f %.1fH%.1f", path.empty() ? "M" : "L",
                                 x_of(points[at].x), scale.Y(points[at].y),
                                 x_of(std::min(end, high))));
    }
    absl::StrAppend(&svg, "<path d=\"", path, "\" class=\"l",
                    static_cast<int>(i) % kColours, "\"/>");
  }
  return svg + "</svg>";
}

}  // namespace

std::string ToSvg(const Chart& chart) {
  switch (chart.kind) {
    case Chart::Kind::kLines:
      return Lines(chart);
    case Chart::Kind::kBars:
      return Bars(chart);
    case Chart::Kind::kSteps:
      return Steps(chart);
  }
  return "";
}

}  // namespace terrace::bench
