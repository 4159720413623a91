#include "train/checkpoint/checksum.h"

#include <xxhash.h>

#include "core/base/result.h"

namespace yoke {

Checksum::Checksum() : state_(XXH3_createState()) {
  YOKE_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK, "no memory for a checksum");
}

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

std::uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace yoke
