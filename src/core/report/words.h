// How the summary and the page word things, so that both say the same.
#pragma once

#include <string>

#include "core/report/report.h"

namespace yoke {

inline constexpr const char* not_measured = "not measured";

// "communication_exposed" -> "exposed communication".
std::string part_title(const std::string& name);
// "5.5452"; very small and very large ones with an exponent.
std::string loss_text(double loss);
// Too small for a line of its own: 0.0%.
bool negligible(double part, double whole);
// "41.2%"; of two numbers.
std::string percent(double part, double whole = 1);
// "+5.4%": how far measured is from predicted.
std::string difference(double predicted, double measured);
// "200 of 1,000 steps".
std::string steps_text(const Report& report);
// "llama-10m, 10.5M parameters" and "2 ranks on cpu, data 2, ZeRO 1, fp32"; empty when nothing is known.
std::string model_text(const Report& report);
std::string ranks_text(const Report& report);
// "1 restart, resumed 2 times"; empty if there was neither.
std::string restarts_text(const Report& report);
// "restart 2", "resumed": what the restart at this place of the report is called.
std::string restart_title(const Report& report, std::size_t place);
// "step 57: rank 1 was killed by SIGKILL (7 steps repeated, 12.3 s lost)".
std::string restart_text(const ReportRestart& restart);

}  // namespace yoke
