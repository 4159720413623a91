#include "core/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "core/base/text.h"
#include "core/report/html_parts.h"
#include "core/report/svg.h"
#include "core/report/words.h"

namespace yoke {
namespace {

class Page {
 public:
  std::string html;

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(html), format, std::forward<Args>(args)...);
  }
};

std::string utc(std::int64_t ns) {
  const std::time_t seconds = ns / 1'000'000'000;
  std::tm time{};
  char text[32] = "";
  if (gmtime_r(&seconds, &time) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &time);
  return text;
}

std::string text_or_none(const std::optional<double>& value, std::string (*format)(double)) {
  return value ? format(*value) : not_measured;
}

void add_header(const Report& r, Page& page) {
  const char* colour = r.outcome == "done" ? "ok" : r.outcome == "failed" ? "bad" : "warn";
  page.add("<header><div><h1>{}</h1><span class=\"badge {}\">{}</span></div>", escape_html(r.name), colour,
           escape_html(r.outcome));
  std::vector<std::string> facts;
  for (const std::string& fact : {model_text(r), ranks_text(r), r.start_ns ? utc(*r.start_ns) : std::string()}) {
    if (!fact.empty()) facts.push_back(escape_html(fact));
  }
  page.add("<p>{}</p></header>\n", join(facts, " &middot; "));
}

void add_figure(Page& page, const char* name, const std::string& value, const std::string& below) {
  page.add("<dl class=\"card\"><dt>{}</dt><dd{}>{}</dd><small>{}</small></dl>\n", name,
           value == not_measured ? " class=\"none\"" : "", escape_html(value), escape_html(below));
}

std::string best_text(const std::optional<Point>& best) {
  return best ? fmt::format("best {} at step {}", loss_text(best->y), format_thousands(std::llround(best->x)))
              : "no finite one";
}

void add_figures(const Report& r, Page& page) {
  auto whole = [](double v) { return format_thousands(std::llround(v)); };
  page.html += "<div class=\"figures\">\n";
  std::string from = r.first_loss ? fmt::format("from {}, {}", loss_text(r.first_loss->y), best_text(r.best_loss)) : "";
  if (r.losses_not_finite > 0) from += fmt::format(", {} not finite", format_thousands(r.losses_not_finite));
  add_figure(page, "Loss", r.last_loss ? loss_text(r.last_loss->y) : not_measured, from);
  add_figure(page, "Validation loss", r.last_validation ? loss_text(r.last_validation->y) : not_measured,
             r.last_validation ? best_text(r.best_validation) : "");
  add_figure(page, "Tokens per second", text_or_none(r.median_tokens_per_second, whole),
             r.mean_tokens_per_second ? fmt::format("median of {} warm steps, mean {}", format_thousands(r.warm_steps),
                                                    whole(*r.mean_tokens_per_second))
                                      : "");
  add_figure(page, "MFU", text_or_none(r.mean_mfu, [](double v) { return percent(v); }),
             r.mean_mfu ? "of the devices' dense peak" : "");
  std::vector<std::string> extent;
  if (r.steps_planned) extent.push_back("of " + format_thousands(*r.steps_planned));
  if (r.steps_skipped > 0) extent.push_back(format_thousands(r.steps_skipped) + " skipped: overflow in fp16");
  if (r.tokens) extent.push_back(format_count(static_cast<double>(*r.tokens)) + " tokens");
  add_figure(page, "Steps", format_thousands(r.steps_done), join(extent, ", "));
  add_figure(page, "A step takes", text_or_none(r.mean_step_seconds, format_seconds),
             r.median_step_seconds ? "mean; median " + format_seconds(*r.median_step_seconds) : "");
  add_figure(page, "Peak memory a rank", text_or_none(r.peak_memory.measured, format_bytes),
             r.peak_memory.predicted ? "predicted " + format_bytes(*r.peak_memory.predicted) : "");
  add_figure(page, "Wall time", text_or_none(r.wall_seconds, format_seconds),
             r.startup_seconds ? format_seconds(*r.startup_seconds) + " from start to first step" : "");
  page.html += "</div>\n";
}

std::vector<ChartMark> marks_of(const Report& r) {
  std::vector<ChartMark> marks;
  for (const ReportRestart& restart : r.restarts) {
    if (!restart.at_step) continue;
    marks.push_back({static_cast<double>(*restart.at_step),
                     (restart.attempt == 0 ? "Resumed " : "Restart ") + restart_text(restart)});
  }
  return marks;
}

std::string legend(const LineChart& chart) {
  std::string out = "<ul class=\"legend\">";
  if (chart.curves.size() > 1) {
    for (const Curve& curve : chart.curves) {
      out += fmt::format("<li><span class=\"swatch c{}\"></span>{}</li>", curve.colour, escape_html(curve.name));
    }
  }
  if (!chart.marks.empty()) out += "<li><span class=\"swatch dash\"></span>restart</li>";
  return out + "</ul>";
}

// The loss, linear and logarithmic, of which the style sheet shows the one that is chosen.
void add_loss_chart(const Report& r, Page& page) {
  LineChart chart{"Loss", "step", {{"training", 1, r.loss, false}}, marks_of(r), true, false, false};
  if (!r.validation_loss.empty()) {
    chart.curves.push_back({"validation", 2, r.validation_loss, r.validation_loss.size() <= 60});
  }
  page.add("<section class=\"card all two\"><div class=\"head\"><h2>Loss</h2>{}", legend(chart));
  page.html +=
      "<span class=\"toggle\"><input type=\"radio\" name=\"scale\" id=\"linear\" checked><label "
      "for=\"linear\">linear</label>"
      "<input type=\"radio\" name=\"scale\" id=\"log\"><label for=\"log\">log</label></span></div>";
  page.add("<div class=\"linear\">{}</div>", line_chart(chart));
  chart.logarithmic = true;
  page.add("<div class=\"log\">{}</div></section>\n", line_chart(chart));
}

void add_chart(const char* title, const char* name, int colour, const std::vector<Point>& points, const Report& r,
               Page& page) {
  LineChart chart{title, "step", {{name, colour, points, false}}, marks_of(r), false, true, false};
  page.add("<section class=\"card\"><div class=\"head\"><h2>{}</h2>{}</div>", title, legend(chart));
  page.add("{}</section>\n",
           points.empty() ? fmt::format("<p class=\"soft\">{}</p>", not_measured) : line_chart(chart));
}

void add_step_parts(const Report& r, Page& page) {
  page.html += "<section class=\"card\"><h2>Where a step's time went</h2>";
  std::vector<Slice> slices;
  std::string rows;
  double longest = 0;
  for (const StepPart& part : r.step_parts) longest = std::max(longest, part.seconds.value_or(0));
  for (std::size_t i = 0; i < r.step_parts.size(); ++i) {
    const auto& [name, seconds] = r.step_parts[i];
    int colour = name == "other" ? 7 : static_cast<int>(i) + 1;
    std::string title = part_title(name);
    if (seconds && negligible(*seconds, *r.mean_step_seconds)) continue;
    if (!seconds) {
      rows += fmt::format(
          "<tr><td class=\"soft\">{}</td><td class=\"b\"></td><td class=\"n soft\" colspan=\"2\">{}</td></tr>", title,
          not_measured);
      continue;
    }
    std::string time = format_seconds(*seconds), share = percent(*seconds, *r.mean_step_seconds);
    slices.push_back({fmt::format("{}: {}, {}", title, time, share), *seconds, colour});
    rows += fmt::format(
        "<tr><td><span class=\"swatch c{}\"></span>{}</td><td class=\"b\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>",
        colour, title, single_bar(*seconds, longest, colour), time, share);
  }
  if (slices.empty()) {
    page.add("<p class=\"soft\">{}</p></section>\n", not_measured);
    return;
  }
  page.html += stacked_bar("Where a step's time went", slices);
  page.add(
      "<table><tr><th>part</th><th class=\"b\"></th><th class=\"n\">mean</th><th "
      "class=\"n\">share</th></tr>{}</table></section>\n",
      rows);
}

void add_memory(const Report& r, Page& page) {
  page.html +=
      "<section class=\"card\"><div class=\"head\"><h2>Memory of a rank</h2>"
      "<ul class=\"legend\"><li><span class=\"swatch hollow c7\"></span>predicted</li>"
      "<li><span class=\"swatch c1\"></span>measured</li></ul></div>";
  std::vector<MemoryPart> parts = r.memory_parts;
  parts.push_back(r.peak_memory);
  std::erase_if(parts, [](const MemoryPart& part) { return !part.predicted && !part.measured; });
  if (parts.empty()) {
    page.add("<p class=\"soft\">{}</p></section>\n", not_measured);
    return;
  }
  double full = 0;
  for (const MemoryPart& part : parts) full = std::max({full, part.predicted.value_or(0), part.measured.value_or(0)});
  page.html +=
      "<table><tr><th>part</th><th class=\"b\"></th><th class=\"n\">predicted</th><th class=\"n\">measured</th><th "
      "class=\"n\"></th></tr>";
  for (const auto& [name, predicted, measured] : parts) {
    std::string bars;
    if (predicted) bars += single_bar(*predicted, full, 7, true);
    if (measured) bars += single_bar(*measured, full, 1);
    page.add(
        "<tr><td>{}</td><td class=\"b\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n "
        "soft\">{}</td></tr>",
        escape_html(part_title(name)), bars, predicted ? format_bytes(*predicted) : "",
        measured ? format_bytes(*measured) : fmt::format("<span class=\"soft\">{}</span>", not_measured),
        predicted && measured ? difference(*predicted, *measured) : "");
  }
  page.html += "</table></section>\n";
}

void add_restarts(const Report& r, Page& page) {
  if (r.restarts.empty()) return;
  page.html +=
      "<section class=\"card all\"><h2>Restarts</h2><table><tr><th></th><th>reason</th><th class=\"n\">after step</th>"
      "<th class=\"n\">went on from</th><th class=\"n\">steps repeated</th><th class=\"n\">time lost</th></tr>";
  auto number = [](const std::optional<std::int64_t>& n) {
    return n ? format_thousands(*n) : std::string(not_measured);
  };
  for (std::size_t i = 0; i < r.restarts.size(); ++i) {
    const ReportRestart& restart = r.restarts[i];
    page.add(
        "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>",
        restart_title(r, i), restart.reason.empty() ? "not recorded" : escape_html(restart.reason),
        number(restart.at_step), number(restart.resumed_at), number(restart.repeated_steps()),
        text_or_none(restart.lost_seconds, format_seconds));
  }
  page.html += "</table></section>\n";
}

void add_messages(const Report& r, Page& page) {
  if (r.messages.empty() && r.problems.empty()) return;
  page.html += "<section class=\"card all\"><h2>Warnings and errors</h2><ul class=\"messages\">";
  for (const ReportMessage& m : r.messages) {
    page.add("<li><b class=\"{}\">{}</b> <span class=\"soft\">{}{}</span> {}", m.error ? "bad" : "warn",
             m.error ? "error" : "warning", m.rank < 0 ? "launcher" : fmt::format("rank {}", m.rank),
             m.count > 1 ? fmt::format(", {} times", m.count) : "", escape_html(m.what));
    page.add("{}</li>", m.hint.empty() ? "" : "<br><span class=\"soft\">" + escape_html(m.hint) + "</span>");
  }
  for (const std::string& problem : r.problems) {
    page.add("<li><b class=\"warn\">note</b> {}</li>", escape_html(problem));
  }
  page.html += "</ul></section>\n";
}

void add_spec(const Report& r, Page& page) {
  if (r.spec.empty()) return;
  page.html +=
      "<section class=\"card all\"><h2>The spec, and where each value came from</h2>"
      "<table><tr><th>key</th><th>value</th><th>origin</th></tr>";
  for (const auto& [key, value, origin] : r.spec) {
    std::string breakable = escape_html(key);  // at its dots
    for (std::size_t dot = 0; (dot = breakable.find('.', dot)) != std::string::npos;) breakable.insert(++dot, "<wbr>");
    page.add("<tr{}><td><code>{}</code></td><td class=\"v\"><code>{}</code></td><td class=\"v\">{}</td></tr>",
             origin == "default" ? " class=\"default\"" : "", breakable, escape_html(value), escape_html(origin));
  }
  page.html += "</table></section>\n";
}

void add_versions(const Report& r, Page& page) {
  if (r.versions.empty()) return;
  page.html += "<section class=\"card all\"><h2>Versions</h2><table>";
  for (const auto& [name, version] : r.versions) {
    page.add("<tr><td>{}</td><td><code>{}</code></td></tr>", escape_html(name), escape_html(version));
  }
  page.html += "</table></section>\n";
}

}  // namespace

std::string report_html(const Report& r) {
  Page page;
  // The policy makes the browser refuse whatever is not in this file.
  page.add(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{} &middot; "
      "{}</title>\n<style>{}</style></head>\n<body><main>\n",
      escape_html(r.name), escape_html(r.outcome), report_style);
  add_header(r, page);
  add_figures(r, page);
  page.html += "<div class=\"grid2\">\n";
  add_loss_chart(r, page);
  add_chart("Gradient norm", "gradient norm", 4, r.grad_norm, r, page);
  add_chart("Tokens per second", "tokens/s", 3, r.tokens_per_second, r, page);
  add_step_parts(r, page);
  add_memory(r, page);
  add_restarts(r, page);
  add_messages(r, page);
  add_spec(r, page);
  add_versions(r, page);
  page.add("</div>\n<footer>{}</footer></main><div id=\"tip\"></div>\n<script>{}</script></body></html>\n",
           escape_html(r.folder), report_script);
  return std::move(page.html);
}

}  // namespace yoke
