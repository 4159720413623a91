// The report as a page: one file that needs nothing else, so that it opens offline and can be sent to somebody.
#pragma once

#include <string>

#include "core/report/report.h"

namespace yoke {

std::string report_html(const Report& report);

}  // namespace yoke
