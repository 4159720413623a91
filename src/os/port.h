// TCP ports of this machine.
#pragma once

#include "core/base/result.h"

namespace yoke {

// A port that is free now, on all addresses. Nothing reserves it: whoever gets it should listen soon.
Result<int> free_tcp_port();

}  // namespace yoke
