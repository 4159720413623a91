// What a Python script with torch's @record writes when it fails (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <string>
#include <string_view>

namespace yoke {

// "ValueError: bad shape" from {"message": {"message": "ValueError: bad shape", ...}} or {"message": "..."}; empty if
// the text is neither.
std::string message_of_error_file(std::string_view json);

}  // namespace yoke
