#include "core/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace yoke {
namespace {

constexpr std::size_t most_points = 1000;
constexpr double left = 62, right = 14, top = 10, bottom = 32;

struct Range {
  double low = HUGE_VAL, high = -HUGE_VAL;
  void add(double value) { low = std::min(low, value), high = std::max(high, value); }
  bool empty() const { return low > high; }
  double share(double value) const { return (value - low) / (high - low); }
};

bool drawable(double y, bool logarithmic) { return std::isfinite(y) && (!logarithmic || y > 0); }

// From data to the picture's coordinates.
struct Frame {
  double width, height;
  bool logarithmic;
  Range x, y;  // y in powers of ten when logarithmic

  double px(double value) const { return left + x.share(value) * (width - left - right); }
  double py(double value) const {
    return height - bottom - y.share(logarithmic ? std::log10(value) : value) * (height - top - bottom);
  }
};

Frame frame_of(const LineChart& chart) {
  Frame frame{chart.wide ? 760.0 : 520.0, chart.wide ? 300.0 : 240.0, chart.logarithmic, {}, {}};
  for (const Curve& curve : chart.curves) {
    for (const Point& p : curve.points) {
      frame.x.add(p.x);
      if (drawable(p.y, chart.logarithmic)) frame.y.add(chart.logarithmic ? std::log10(p.y) : p.y);
    }
  }
  if (chart.from_zero && !chart.logarithmic) frame.y.add(0);
  for (Range* range : {&frame.x, &frame.y}) {
    if (range->empty()) *range = {0, 1};
    if (range->low == range->high) {
      double around = range->low == 0 ? 1 : std::abs(range->low) * 0.1;
      range->low -= around, range->high += around;
    }
  }
  double margin = (frame.y.high - frame.y.low) * 0.05;
  frame.y.high += margin;
  if (frame.y.low != 0 || !chart.from_zero) frame.y.low -= margin;
  return frame;
}

void add_axes(const LineChart& chart, const Frame& f, std::string& out) {
  auto to = std::back_inserter(out);
  std::vector<double> ticks = f.logarithmic ? logarithmic_ticks(std::pow(10, f.y.low), std::pow(10, f.y.high), 6)
                                            : nice_ticks(f.y.low, f.y.high, 5);
  for (double tick : ticks) {
    double y = f.py(tick);
    fmt::format_to(to, "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>", left, y, f.width - right);
    fmt::format_to(to, "<text x=\"{}\" y=\"{:.1f}\" dy=\".35em\" text-anchor=\"end\">{}</text>", left - 8, y,
                   axis_number(tick));
  }
  for (double tick : nice_ticks(f.x.low, f.x.high, chart.wide ? 7 : 5)) {
    if (tick != std::floor(tick)) continue;  // x counts steps
    fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{}\" dy=\"1.4em\" text-anchor=\"middle\">{}</text>", f.px(tick),
                   f.height - bottom, axis_number(tick));
  }
  fmt::format_to(to, "<text x=\"{}\" y=\"{}\" dy=\"1.4em\" text-anchor=\"end\">{}</text>", left - 8, f.height - bottom,
                 escape_html(chart.x_name));
  fmt::format_to(to, "<path class=\"axis\" d=\"M{} {}H{}\"/>", left, f.height - bottom, f.width - right);
}

void add_curve(const Curve& curve, const Frame& f, std::string& out) {
  std::vector<Point> points = downsample(curve.points, most_points);
  std::string line, dots, data;
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto [x, y] = points[i];
    if (!drawable(y, f.logarithmic)) continue;
    bool begins = i == 0 || !drawable(points[i - 1].y, f.logarithmic);
    bool ends = i + 1 == points.size() || !drawable(points[i + 1].y, f.logarithmic);
    fmt::format_to(std::back_inserter(line), "{}{:.1f} {:.1f}", begins ? 'M' : 'L', f.px(x), f.py(y));
    if (begins && ends) line += "h0";  // a point alone becomes a dot, by the round ends of the stroke
    if (curve.dots) fmt::format_to(std::back_inserter(dots), "M{:.1f} {:.1f}h0", f.px(x), f.py(y));
    fmt::format_to(std::back_inserter(data), "{}{} {:.6g}", data.empty() ? "" : " ", x, y);
  }
  fmt::format_to(std::back_inserter(out), "<path class=\"curve c{}\" data-name=\"{}\" data-points=\"{}\" d=\"{}\"/>",
                 curve.colour, escape_html(curve.name), data, line);
  if (curve.dots) fmt::format_to(std::back_inserter(out), "<path class=\"dots c{}\" d=\"{}\"/>", curve.colour, dots);
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  Frame f = frame_of(chart);
  std::string out = fmt::format(
      "<svg class=\"chart {}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-x=\"{} {}\" data-box=\"{} "
      "{}\" "
      "data-x-name=\"{}\">",
      chart.wide ? "wide" : "half", f.width, f.height, escape_html(chart.name), f.x.low, f.x.high, left,
      f.width - right, escape_html(chart.x_name));
  add_axes(chart, f, out);
  for (const ChartMark& mark : chart.marks) {
    if (mark.x < f.x.low || mark.x > f.x.high) continue;
    fmt::format_to(std::back_inserter(out), "<path class=\"mark\" d=\"M{:.1f} {}V{}\"><title>{}</title></path>",
                   f.px(mark.x), top, f.height - bottom, escape_html(mark.text));
  }
  for (const Curve& curve : chart.curves) add_curve(curve, f, out);
  return out + "<path class=\"cursor\"/></svg>";
}

std::string stacked_bar(std::string_view name, std::span<const Slice> slices) {
  double sum = 0, at = 0;
  for (const Slice& slice : slices) sum += slice.value;
  std::string out = fmt::format(
      "<svg class=\"stack\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
      escape_html(name));
  for (const Slice& slice : slices) {
    double width = sum > 0 ? slice.value / sum * 1000 : 0;
    fmt::format_to(std::back_inserter(out),
                   "<rect class=\"c{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"10\"><title>{}</title></rect>",
                   slice.colour, at, width, escape_html(slice.text));
    at += width;
  }
  return out + "</svg>";
}

std::string single_bar(double value, double full, int colour, bool hollow) {
  double width = full > 0 ? std::clamp(value / full, 0.0, 1.0) * 100 : 0;
  return fmt::format(
      "<svg class=\"bar\" role=\"presentation\"><rect class=\"c{}{}\" width=\"{:.2f}%\" height=\"100%\"/></svg>",
      colour, hollow ? " hollow" : "", width);
}

std::vector<double> nice_ticks(double low, double high, int count) {
  double raw = (high - low) / std::max(count, 1);
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power;
  for (double factor : {2.0, 5.0, 10.0}) {
    if (step < raw * 0.75) step = power * factor;
  }
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k)
    ticks.push_back(k == 0 ? 0 : k * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high, int count) {
  double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
  double every = std::max(1.0, std::ceil((last - first) / count));
  std::vector<double> ticks;
  for (double power = first; power <= last; power += every) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && last - first > 3) continue;
      double tick = factor * std::pow(10, power);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks.size() < 3 ? nice_ticks(low, high, count) : ticks;
}

std::string axis_number(double value) {
  double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e3) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

}  // namespace yoke
