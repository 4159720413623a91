#include "core/report/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/report/html_parts.h"
#include "core/report/sample_for_test.h"

namespace yoke {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Html, ShowsFiguresChartsRestartsAndSpec) {
  RunData data = restarted_run();
  data.run_json = R"({"spec":{"name":"tiny","train":{"steps":6}},"origins":{"train.steps":"--set"}})";
  std::string html = report_html(make_report(data));
  EXPECT_THAT(html, HasSubstr("<h1>tiny</h1><span class=\"badge ok\">done</span>"));
  EXPECT_THAT(html, HasSubstr("<dt>Loss</dt><dd>1.2500</dd><small>from 9.0000, best 1.2500 at step 6</small>"));
  EXPECT_THAT(html, HasSubstr("<dt>MFU</dt><dd class=\"none\">not measured</dd>"));
  EXPECT_THAT(html, HasSubstr("data-name=\"training\" data-points=\"1 9 2 8 3 7 4 3.25 5 2.25 6 1.25\""));
  EXPECT_THAT(html, HasSubstr("data-name=\"validation\" data-points=\"6 1.5\""));
  EXPECT_THAT(
      html,
      HasSubstr("<title>Restart after step 5: rank 1 was killed by SIGKILL (2 steps repeated, 7.0 s lost)</title>"));
  EXPECT_THAT(
      html,
      HasSubstr("<code>train.<wbr>steps</code></td><td class=\"v\"><code>6</code></td><td class=\"v\">--set</td>"));
  EXPECT_THAT(html, HasSubstr("<td>libtorch</td><td><code>2.13.0</code></td>"));
}

TEST(Html, NothingThatARunSaysIsReadAsHtml) {
  const std::string evil = "</style><script>alert(1)</script>\"'&";
  RunData data;
  data.folder = evil;
  data.run_json =
      R"({"spec":{"name":"</style><script>alert(1)</script>","k<b>":"<script>"},"origins":{"name":"<script>"}})";
  StartEvent start = sample_start(0, 0);
  start.versions = {{evil, evil}};
  start.device = evil;
  data.records = {{0, 0, start}, {0, 0, MessageEvent{true, evil, evil}}, {0, -1, RestartEvent{1, evil}}};
  data.problems = {evil};
  std::string html = report_html(make_report(data));
  std::size_t scripts = 0;
  for (std::size_t at = html.find("<script"); at != std::string::npos; at = html.find("<script", at + 1)) ++scripts;
  EXPECT_EQ(scripts, 1u) << "only our own";
  EXPECT_THAT(html, Not(HasSubstr("<b>\"")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
}

TEST(Html, FixedPartsCannotEndTheirElement) {
  EXPECT_THAT(report_style, Not(HasSubstr("</")));
  EXPECT_THAT(report_script, Not(HasSubstr("</")));
}

TEST(Html, AnEmptyRunIsStillAPage) {
  std::string html = report_html(make_report({}));
  EXPECT_THAT(html, HasSubstr("not measured"));
  EXPECT_THAT(html, HasSubstr("</html>"));
}

}  // namespace
}  // namespace yoke
