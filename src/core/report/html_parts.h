// The fixed text of the page: its style sheet and its script. Neither may hold "</".
#pragma once

namespace yoke {

extern const char* const report_style;
extern const char* const report_script;

}  // namespace yoke
