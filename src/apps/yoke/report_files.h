// The report of a run folder.
#pragma once

#include <string>

#include "core/base/result.h"
#include "core/report/report.h"

namespace yoke {

// run.json, plan.json and events/*.jsonl, each of which may be absent, but not all. A line cut short by the death of
// its rank is skipped quietly; of other lines that cannot be read, the problems say how many there are.
Result<RunData> read_run(const std::string& run_dir);

// Writes report.html and report.json into the run folder; returns the summary for the terminal.
Result<std::string> write_report(const std::string& run_dir);

// The run folder that a person means: the folder itself, or the newest of a run's folders, given as runs/NAME or NAME.
Result<std::string> find_run_dir(const std::string& run);

}  // namespace yoke
