// The report for programs.
#pragma once

#include <string>

#include "core/report/report.h"

namespace yoke {

// {"schema": 1, ...}: base units, stable names; what was not measured is absent. Losses that are not finite are "nan",
// "inf" and "-inf", as in telemetry. Without the curves, which are in events/.
std::string report_json(const Report& report);

}  // namespace yoke
