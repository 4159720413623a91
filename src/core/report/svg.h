// Small pictures for a page: SVG elements to stand inside HTML5. Colours and fonts come from the page's style sheet
// (classes c1, c2, ... name the colours), what the pointer shows from its script, which reads the data- attributes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/report/points.h"

namespace yoke {

struct Curve {
  std::string name;
  int colour = 1;
  std::vector<Point> points;  // in order of x; a y that is not finite is a gap
  bool dots = false;          // a dot on each point
};

struct ChartMark {  // a vertical line
  double x = 0;
  std::string text;
};

struct LineChart {
  std::string name, x_name;
  std::vector<Curve> curves;
  std::vector<ChartMark> marks;
  bool wide = false;
  bool from_zero = false;
  bool logarithmic = false;  // y; values that are not positive are gaps
};

// At most 1000 points a curve are drawn.
std::string line_chart(const LineChart& chart);

struct Slice {
  std::string text;  // shown by the pointer
  double value = 0;
  int colour = 1;
};

// Slices side by side, as wide as their shares.
std::string stacked_bar(std::string_view name, std::span<const Slice> slices);
// One bar, as wide as its share of `full`; hollow: only an outline.
std::string single_bar(double value, double full, int colour, bool hollow = false);

// About `count` round numbers (1, 2 or 5 times a power of ten apart) from low to high.
std::vector<double> nice_ticks(double low, double high, int count);
// The same for a logarithmic axis; low > 0.
std::vector<double> logarithmic_ticks(double low, double high, int count);
// "0.25", "150", "1.5k", "20k", "1.5M".
std::string axis_number(double value);

// Text as HTML text or as an attribute in double quotes.
std::string escape_html(std::string_view text);

}  // namespace yoke
