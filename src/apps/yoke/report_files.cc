#include "apps/yoke/report_files.h"

#include "core/report/html.h"
#include "core/report/report_json.h"
#include "core/report/summary.h"
#include "os/file.h"

namespace yoke {
namespace {

// What every record begins with: where a rank went on writing after a line that was cut short.
constexpr std::string_view record_begin = "{\"schema\":";

void read_events(std::string_view text, const std::string& name, RunData& data) {
  std::size_t bad = 0, first_bad = 0, number = 0;
  std::string why;
  while (!text.empty()) {
    std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    bool complete = end < text.size();
    text.remove_prefix(complete ? end + 1 : end);
    ++number;
    if (line.empty()) continue;
    Result<Record> record = record_from_json_line(line);
    if (!record) {
      std::size_t again = line.rfind(record_begin);
      if (again != 0 && again != std::string_view::npos) record = record_from_json_line(line.substr(again));
    }
    if (record) {
      data.records.push_back(*std::move(record));
    } else if (complete) {
      if (bad++ == 0) first_bad = number, why = record.error().what;
    }
  }
  if (bad == 0) return;
  data.problems.push_back(fmt::format("{}: {} could not be read; line {}: {}", name,
                                      bad == 1 ? "1 line" : fmt::format("{} lines", bad), first_bad, why));
}

Result<void> read_if_any(const std::string& path, std::string& out) {
  if (!exists(path)) return {};
  YOKE_TRY(out, read_file(path));
  return {};
}

}  // namespace

Result<RunData> read_run(const std::string& run_dir) {
  RunData data;
  data.folder = run_dir;
  std::string events = run_dir + "/events";
  YOKE_TRY_VOID(read_if_any(run_dir + "/run.json", data.run_json));
  YOKE_TRY_VOID(read_if_any(run_dir + "/plan.json", data.plan_json));
  if (!is_folder(events)) {
    if (!data.run_json.empty()) return data;
    return fail(ErrorKind::usage, fmt::format("{} is not a run folder: it has neither run.json nor events", run_dir),
                "name a folder below runs, such as runs/NAME/latest");
  }
  YOKE_TRY(std::vector<std::string> names, list_folder(events));
  for (const std::string& name : names) {
    if (!name.ends_with(".jsonl")) continue;
    YOKE_TRY(std::string text, read_file(events + "/" + name));
    read_events(text, "events/" + name, data);
  }
  return data;
}

Result<std::string> write_report(const std::string& run_dir) {
  YOKE_TRY(RunData data, read_run(run_dir));
  Report report = make_report(data);
  YOKE_TRY_VOID(write_file_atomically(run_dir + "/report.html", report_html(report)));
  YOKE_TRY_VOID(write_file_atomically(run_dir + "/report.json", report_json(report)));
  return report_summary(report);
}

Result<std::string> find_run_dir(const std::string& run) {
  for (const std::string& candidate : {run, run + "/latest", "runs/" + run + "/latest"}) {
    if (is_folder(candidate + "/events") || exists(candidate + "/run.json")) return candidate;
  }
  return fail(ErrorKind::usage, fmt::format("there is no run {}", run),
              "name a run folder, or a run as below runs, such as runs/NAME");
}

}  // namespace yoke
