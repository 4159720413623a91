#include "core/telemetry/tfevents.h"

#include <array>
#include <bit>

namespace yoke {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78u : 0);  // Castagnoli, reflected
    table[i] = c;
  }
  return table;
}

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

enum Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_tag(std::string& out, unsigned field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, unsigned field, std::string_view value) {
  put_tag(out, field, bytes);
  put_varint(out, value.size());
  out += value;
}

std::string event_at(double wall_time) {
  std::string out;
  put_tag(out, 1, fixed64);
  put_fixed(out, std::bit_cast<std::uint64_t>(wall_time));
  return out;
}

std::uint32_t masked_crc(std::string_view data) {
  std::uint32_t crc = crc32c(data);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string framed(std::string_view payload) {
  std::string out;
  put_fixed(out, static_cast<std::uint64_t>(payload.size()));
  put_fixed(out, masked_crc(out));
  out += payload;
  put_fixed(out, masked_crc(payload));
  return out;
}

std::vector<Scalar> scalars_of(const StepEvent& e) {
  std::vector<Scalar> scalars{{"loss/train", e.loss}, {"grad_norm", e.grad_norm}, {"learning_rate", e.learning_rate}};
  auto add = [&](const char* tag, const auto& value) {
    if (value) scalars.push_back({tag, static_cast<double>(*value)});
  };
  add("loss_scale", e.loss_scale);
  add("tokens_per_second", e.tokens_per_second);
  add("mfu", e.mfu);
  scalars.push_back({"seconds/total", e.seconds.total});
  add("seconds/data", e.seconds.data);
  add("seconds/forward", e.seconds.forward);
  add("seconds/backward", e.seconds.backward);
  add("seconds/optimizer", e.seconds.optimizer);
  add("seconds/communication_exposed", e.seconds.communication_exposed);
  add("seconds/checkpoint", e.seconds.checkpoint);
  add("memory/peak_bytes", e.memory.peak_bytes);
  return scalars;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  static constexpr auto table = crc_table();
  std::uint32_t crc = ~0u;
  for (char c : data) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tfevents_header(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return framed(event);
}

std::string tfevents_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_tag(value, 2, fixed32);
    put_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time);
  if (step != 0) {  // as protobuf does: a field at its default is left out
    put_tag(event, 2, varint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  put_bytes(event, 5, summary);
  return framed(event);
}

std::string tfevents_record(const Record& record) {
  double wall_time = static_cast<double>(record.time_ns) * 1e-9;
  if (const auto* step = std::get_if<StepEvent>(&record.event)) {
    return tfevents_scalars(wall_time, step->step + 1, scalars_of(*step));
  }
  if (const auto* validation = std::get_if<ValidationEvent>(&record.event)) {
    return tfevents_scalars(wall_time, validation->step + 1,
                            std::vector<Scalar>{{"loss/validation", validation->loss}});
  }
  return {};
}

}  // namespace yoke
