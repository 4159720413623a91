#include "train/loop/autocast.h"

#include <ATen/autocast_mode.h>

namespace yoke {

namespace autocast = at::autocast;

Autocast::Autocast(at::ScalarType type, at::DeviceType device)
    : device_(device),
      enabled_before_(autocast::is_autocast_enabled(device)),
      cache_before_(autocast::is_autocast_cache_enabled()),
      type_before_(autocast::get_autocast_dtype(device)) {
  autocast::set_autocast_enabled(device, true);
  autocast::set_autocast_dtype(device, type);
  autocast::set_autocast_cache_enabled(false);
}

Autocast::~Autocast() {
  autocast::set_autocast_enabled(device_, enabled_before_);
  autocast::set_autocast_dtype(device_, type_before_);
  autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace yoke
