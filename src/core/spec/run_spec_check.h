// What the keys of a run spec must satisfy together. Inside this room only.
#pragma once

#include <string>

#include "core/base/result.h"
#include "core/spec/run_spec.h"

namespace yoke {

// `file` names the source of what has no line of its own. What needs the model's shape is checked once it is known.
Result<void> check_consistency(const ResolvedSpec& resolved, const std::string& file);

}  // namespace yoke
