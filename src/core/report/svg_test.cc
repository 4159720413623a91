#include "core/report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace yoke {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t n = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++n;
  return n;
}

TEST(Svg, TicksAreRoundNumbers) {
  EXPECT_THAT(nice_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(nice_ticks(1.3, 5.6, 5), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(nice_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_THAT(nice_ticks(7, 7, 5), ElementsAre(7));
  EXPECT_THAT(logarithmic_ticks(0.001, 1000, 6), ElementsAre(0.001, 0.01, 0.1, 1, 10, 100, 1000));
  EXPECT_THAT(logarithmic_ticks(1, 10, 6), ElementsAre(1, 2, 5, 10));
}

TEST(Svg, AxisNumbersAreShort) {
  EXPECT_EQ(axis_number(0.25), "0.25");
  EXPECT_EQ(axis_number(150), "150");
  EXPECT_EQ(axis_number(1500), "1.5k");
  EXPECT_EQ(axis_number(20000), "20k");
  EXPECT_EQ(axis_number(1.5e6), "1.5M");
  EXPECT_EQ(axis_number(-2e9), "-2G");
}

TEST(Svg, ACurveIsDrawnFromCornerToCorner) {
  LineChart chart{"c", "step", {{"a", 3, {{0, 0}, {10, 1}}, false}}, {}, false, true, false};
  std::string svg = line_chart(chart);
  // 520 by 240: x from 62 to 506, y from 208 up to 10; y has 5 % of room above.
  EXPECT_THAT(svg,
              HasSubstr("class=\"curve c3\" data-name=\"a\" data-points=\"0 0 10 1\" d=\"M62.0 208.0L506.0 19.4\""));
}

TEST(Svg, WhatIsNotFiniteIsAGapAndALonePointADot) {
  LineChart chart{"c",  "step", {{"a", 1, {{0, 1}, {1, std::nan("")}, {2, 2}, {3, HUGE_VAL}, {4, 1}, {5, 3}}, false}},
                  {},   false,  false,
                  false};
  std::string svg = line_chart(chart);
  EXPECT_THAT(svg, HasSubstr("data-points=\"0 1 2 2 4 1 5 3\""));
  EXPECT_EQ(count(svg, "h0"), 2u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, LogarithmicChartsLeaveOutWhatIsNotPositive) {
  LineChart chart{"c", "step", {{"a", 1, {{0, 1}, {1, 0}, {2, 100}, {3, 10}}, false}}, {}, false, false, true};
  EXPECT_THAT(line_chart(chart), HasSubstr("data-points=\"0 1 2 100 3 10\""));
}

TEST(Svg, EmptyAndFlatChartsAreStillCharts) {
  LineChart empty{"c", "step", {{"a", 1, {}, false}}, {}, false, false, false};
  LineChart flat{"c", "step", {{"a", 1, {{1, 5}}, false}}, {}, false, false, false};
  for (const LineChart& chart : {empty, flat}) {
    EXPECT_THAT(line_chart(chart), HasSubstr("</svg>"));
    EXPECT_THAT(line_chart(chart), Not(HasSubstr("nan")));
  }
}

TEST(Svg, LongCurvesAreThinnedButKeepTheirSpikes) {
  Curve curve{"a", 1, {}, false};
  for (int i = 0; i < 100'000; ++i) curve.points.push_back({i * 1.0, i == 54'321 ? 77.0 : 1.0});
  LineChart chart{"c", "step", {curve}, {}, true, false, false};
  std::string svg = line_chart(chart);
  EXPECT_THAT(svg, HasSubstr("54321 77 "));
  EXPECT_LT(svg.size(), 60'000u);
}

TEST(Svg, MarksHaveTheirTextAndStandWithinTheChart) {
  LineChart chart{"c",   "step", {{"a", 1, {{0, 1}, {10, 2}}, false}}, {{5, "here <now>"}, {11, "outside"}}, false,
                  false, false};
  std::string svg = line_chart(chart);
  EXPECT_THAT(svg, HasSubstr("M284.0 10V208\"><title>here &lt;now&gt;</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("outside")));
}

TEST(Svg, StackedSlicesAreAsWideAsTheirShares) {
  std::vector<Slice> slices{{"a", 1, 1}, {"b", 3, 2}};
  std::string svg = stacked_bar("s", slices);
  EXPECT_THAT(svg, HasSubstr("class=\"c1\" x=\"0.00\" width=\"250.00\""));
  EXPECT_THAT(svg, HasSubstr("class=\"c2\" x=\"250.00\" width=\"750.00\""));
  EXPECT_THAT(single_bar(1, 4, 1), HasSubstr("width=\"25.00%\""));
  EXPECT_THAT(single_bar(1, 0, 1), HasSubstr("width=\"0.00%\""));
}

TEST(Svg, EscapesWhatHtmlWouldRead) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&\x01"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp; ");
}

}  // namespace
}  // namespace yoke
