// The report for a terminal.
#pragma once

#include <string>

#include "core/report/report.h"

namespace yoke {

// Some lines, each with its line break, without colour. The last one says where report.html is.
std::string report_summary(const Report& report);

}  // namespace yoke
