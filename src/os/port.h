// TCP ports of this machine.
#pragma once

#include <string>

#include "core/base/result.h"

namespace yoke {

// A port that is free now, on all addresses. Nothing reserves it: whoever gets it should listen soon.
Result<int> free_tcp_port();

// Waits until something accepts TCP connections there, looking every few milliseconds; false when nothing has by then.
bool await_listener(const std::string& host, int port, double limit_seconds);

}  // namespace yoke
