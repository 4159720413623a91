// A short name for some content: xxh3-128 as 32 hexadecimal digits. Not a defence against people who mean harm.
#pragma once

#include <string>
#include <string_view>

namespace yoke {

std::string content_hash(std::string_view content);

}  // namespace yoke
