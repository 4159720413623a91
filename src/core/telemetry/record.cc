#include "core/telemetry/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

namespace yoke {
namespace {

constexpr std::int64_t ns_per_second = 1'000'000'000;

// ---- writing
// -----------------------------------------------------------------------------------------------------------

// The length of the well-formed UTF-8 sequence at text[i], or 0.
std::size_t utf8_length(std::string_view text, std::size_t i) {
  auto byte = [&](std::size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
  unsigned first = byte(0);
  std::size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(k) & 0xc0) != 0x80) return 0;
  }
  bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  bool out_of_range = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return overlong || out_of_range ? 0 : length;
}

// By hand, because this is on the training path.
class JsonLine {
 public:
  explicit JsonLine(const Record& record, std::string_view kind) {
    text_.reserve(1024);
    text_ += '{';
    field("schema", std::int64_t{telemetry_schema});
    bool negative = record.time_ns < 0;
    std::uint64_t ns = static_cast<std::uint64_t>(record.time_ns);
    if (negative) ns = 0 - ns;
    key("time");
    fmt::format_to(std::back_inserter(text_), "{}{}.{:09}", negative ? "-" : "", ns / ns_per_second,
                   ns % ns_per_second);
    field("rank", record.rank);
    field("kind", kind);
  }

  void field(std::string_view name, double value) {
    key(name);
    if (value == 0) {
      text_ += std::signbit(value) ? "-0.0" : "0";  // "-0" would be read as an integer, without its sign
    } else if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text_), "{}", value);
    } else {
      text_ += std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
    }
  }
  void field(std::string_view name, std::int64_t value) {
    key(name);
    fmt::format_to(std::back_inserter(text_), "{}", value);
  }
  void field(std::string_view name, std::string_view value) {
    key(name);
    quoted(value);
  }
  template <class T>
  void field(std::string_view name, const std::optional<T>& value) {
    if (value) field(name, *value);
  }
  template <class T>
  void field(std::string_view name, const std::map<std::string, T>& values) {
    if (values.empty()) return;
    open(name);
    for (const auto& [k, v] : values) field(k, v);
    close(name);
  }
  void text_if_any(std::string_view name, const std::string& value) {
    if (!value.empty()) field(name, value);
  }
  void open(std::string_view name) {
    key(name);
    text_ += '{';
  }
  // An object in which nothing was known is left out.
  void close(std::string_view name) {
    if (text_.back() == '{') {
      text_.resize(text_.size() - name.size() - 5);
    } else {
      text_ += '}';
    }
  }
  std::string take() {
    text_ += '}';
    return std::move(text_);
  }

 private:
  void key(std::string_view name) {
    if (text_.back() != '{') text_ += ',';
    quoted(name);
    text_ += ':';
  }
  void quoted(std::string_view value) {
    text_ += '"';
    for (std::size_t i = 0; i < value.size();) {
      unsigned char c = static_cast<unsigned char>(value[i]);
      std::size_t length = utf8_length(value, i);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += value[i];
      } else if (c < 0x20) {
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", c);
      } else if (length == 0) {
        text_ += "\xef\xbf\xbd";  // U+FFFD
      } else {
        text_ += value.substr(i, length);
      }
      i += std::max<std::size_t>(length, 1);
    }
    text_ += '"';
  }

  std::string text_;
};

// ---- reading
// -----------------------------------------------------------------------------------------------------------

struct Field {
  std::string section, key;  // section "" at the top
  std::variant<std::int64_t, double, std::string> value;
  std::string digits;  // of a number with a point or an exponent, as written
};

// Keeps the numbers, strings and one level of objects; whatever else a newer writer adds is passed over.
class Fields : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Field> fields;
  std::string error;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return keep(std::int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return keep(static_cast<double>(value));
    return keep(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& digits) override { return keep(value, digits); }
  bool string(string_t& value) override { return keep(std::move(value)); }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && arrays_ == 0) section_ = key_;
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) section_.clear();
    return true;
  }
  bool start_array(std::size_t) override {
    ++arrays_;
    return true;
  }
  bool end_array() override {
    --arrays_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error = fmt::format("it is not JSON, from byte {} on", position);
    return false;
  }

 private:
  template <class T>
  bool keep(T value, const std::string& digits = {}) {
    if (arrays_ == 0 && (depth_ == 1 || depth_ == 2)) fields.push_back({section_, key_, std::move(value), digits});
    return true;
  }

  int depth_ = 0, arrays_ = 0;
  std::string section_, key_;
};

// "-12.5" -> -12500000000, exactly; digits after the ninth decimal are cut off.
std::optional<std::int64_t> nanoseconds(std::string_view digits) {
  bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  std::size_t point = std::min(digits.find('.'), digits.size());
  std::string text(digits.substr(0, point));
  std::string decimals(digits.substr(std::min(point + 1, digits.size())));
  if (text.empty() || decimals.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  decimals.resize(9, '0');
  text += decimals;
  std::uint64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value > static_cast<std::uint64_t>(INT64_MAX) + (negative ? 1 : 0)) return std::nullopt;
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

// Takes fields out by name; the first one that is missing or of another type is remembered as the error.
class Reader {
 public:
  explicit Reader(std::vector<Field> fields) : fields_(std::move(fields)) {}

  std::string error;

  template <class T>
  void field(const char* key, T& out) {
    const Field* found = find(key);
    if (found == nullptr) return complain(fmt::format("{} is missing", where(key)));
    convert(*found, out);
  }
  template <class T>
  void field(const char* key, std::optional<T>& out) {
    if (const Field* found = find(key)) convert(*found, out.emplace());
  }
  template <class T>
  void field(const char* key, std::map<std::string, T>& out) {
    for (const Field& f : fields_) {
      if (f.section == key) convert(f, out[f.key]);
    }
  }
  void text_if_any(const char* key, std::string& out) {
    if (const Field* found = find(key)) convert(*found, out);
  }
  void open(const char* section) { section_ = section; }
  void close(const char*) { section_.clear(); }
  void time(std::int64_t& out) {
    const Field* found = find("time");
    if (found == nullptr) return complain("time is missing");
    const auto* whole = std::get_if<std::int64_t>(&found->value);
    auto ns = nanoseconds(whole != nullptr ? std::to_string(*whole) : found->digits);
    if (!ns) return complain("time is not a number of seconds");
    out = *ns;
  }

 private:
  const Field* find(std::string_view key) const {
    const Field* found = nullptr;  // of two with one name the last counts, as in most readers
    for (const Field& f : fields_) {
      if (f.key == key && f.section == section_) found = &f;
    }
    return found;
  }
  std::string where(std::string_view key) const {
    return section_.empty() ? std::string(key) : fmt::format("{}.{}", section_, key);
  }
  void complain(std::string message) {
    if (error.empty()) error = std::move(message);
  }
  void convert(const Field& f, std::int64_t& out) {
    if (const auto* value = std::get_if<std::int64_t>(&f.value)) {
      out = *value;
    } else {
      complain(fmt::format("{} is not an integer of 64 bits", f.key));
    }
  }
  void convert(const Field& f, std::string& out) {
    if (const auto* value = std::get_if<std::string>(&f.value)) {
      out = *value;
    } else {
      complain(fmt::format("{} is not a string", f.key));
    }
  }
  void convert(const Field& f, double& out) {
    if (const auto* whole = std::get_if<std::int64_t>(&f.value)) {
      out = static_cast<double>(*whole);
    } else if (const auto* number = std::get_if<double>(&f.value)) {
      out = *number;
    } else if (const auto& text = std::get<std::string>(f.value); text == "nan") {
      out = std::nan("");
    } else if (text == "inf" || text == "-inf") {
      out = text == "inf" ? HUGE_VAL : -HUGE_VAL;
    } else {
      complain(fmt::format("{} is not a number", f.key));
    }
  }

  std::vector<Field> fields_;
  std::string section_;  // that open() has entered
};

// ---- the fields of each kind, listed once for both directions
// ------------------------------------------------------------

template <class T, class Plain>
concept Is = std::same_as<std::remove_const_t<T>, Plain>;

template <class Io, Is<StartEvent> E>
void fields(Io& io, E& e) {
  io.field("world_size", e.world_size);
  io.field("parameters", e.parameters);
  io.field("device", e.device);
  io.field("host", e.host);
  io.field("pid", e.pid);
  io.field("attempt", e.attempt);
  io.field("first_step", e.first_step);
  io.field("checkpoint", e.checkpoint);
  io.field("versions", e.versions);
  io.field("startup_seconds", e.startup_seconds);
}

template <class Io, Is<StepEvent> E>
void fields(Io& io, E& e) {
  io.field("step", e.step);
  io.field("loss", e.loss);
  io.field("grad_norm", e.grad_norm);
  io.field("learning_rate", e.learning_rate);
  io.field("loss_scale", e.loss_scale);
  io.field("tokens", e.tokens);
  io.open("seconds");
  io.field("total", e.seconds.total);
  io.field("data", e.seconds.data);
  io.field("forward", e.seconds.forward);
  io.field("backward", e.seconds.backward);
  io.field("optimizer", e.seconds.optimizer);
  io.field("communication_exposed", e.seconds.communication_exposed);
  io.field("checkpoint", e.seconds.checkpoint);
  io.close("seconds");
  io.open("memory");
  io.field("peak_bytes", e.memory.peak_bytes);
  io.field("parameters", e.memory.parameters);
  io.field("gradients", e.memory.gradients);
  io.field("optimizer", e.memory.optimizer);
  io.field("activations", e.memory.activations);
  io.field("communication", e.memory.communication);
  io.field("checkpoint", e.memory.checkpoint);
  io.close("memory");
  io.field("sent_bytes", e.sent_bytes);
  io.field("tokens_per_second", e.tokens_per_second);
  io.field("mfu", e.mfu);
}

template <class Io, Is<ValidationEvent> E>
void fields(Io& io, E& e) {
  io.field("step", e.step);
  io.field("loss", e.loss);
  io.field("tokens", e.tokens);
}

template <class Io, Is<CheckpointEvent> E>
void fields(Io& io, E& e) {
  io.field("step", e.step);
  io.field("path", e.path);
  io.field("seconds", e.seconds);
  io.field("bytes", e.bytes);
}

template <class Io, Is<MessageEvent> E>
void fields(Io& io, E& e) {
  io.field("what", e.what);
  io.text_if_any("hint", e.hint);
}

template <class Io, Is<RestartEvent> E>
void fields(Io& io, E& e) {
  io.field("attempt", e.attempt);
  io.field("reason", e.reason);
}

template <class Io, Is<EndEvent> E>
void fields(Io& io, E& e) {
  io.field("step", e.step);
  io.field("outcome", e.outcome);
}

std::string_view kind_of(const Event& event) {
  constexpr std::string_view kinds[] = {"start", "step", "validation", "checkpoint", "", "restart", "end"};
  if (const auto* message = std::get_if<MessageEvent>(&event)) return message->error ? "error" : "warning";
  return kinds[event.index()];
}

std::optional<Event> empty_event(std::string_view kind) {
  if (kind == "start") return StartEvent{};
  if (kind == "step") return StepEvent{};
  if (kind == "validation") return ValidationEvent{};
  if (kind == "checkpoint") return CheckpointEvent{};
  if (kind == "warning" || kind == "error") return MessageEvent{kind == "error", {}, {}};
  if (kind == "restart") return RestartEvent{};
  if (kind == "end") return EndEvent{};
  return std::nullopt;
}

}  // namespace

std::string to_json_line(const Record& record) {
  JsonLine line(record, kind_of(record.event));
  std::visit([&](const auto& event) { fields(line, event); }, record.event);
  return line.take();
}

Result<Record> record_from_json_line(std::string_view line) {
  auto bad = [](const std::string& why) { return fail(ErrorKind::failed, "telemetry record: " + why); };
  Fields found;
  if (!nlohmann::json::sax_parse(line, &found)) return bad(found.error);
  Reader in(std::move(found.fields));

  Record record;
  std::int64_t schema = 0;
  std::string kind;
  in.field("schema", schema);
  in.field("kind", kind);
  in.time(record.time_ns);
  in.field("rank", record.rank);
  if (!in.error.empty()) return bad(in.error);
  if (schema != telemetry_schema)
    return bad(fmt::format("schema is {}, this program reads {}", schema, telemetry_schema));
  auto event = empty_event(kind);
  if (!event) return bad(fmt::format("unknown kind \"{}\"", kind));
  std::visit([&](auto& e) { fields(in, e); }, *event);
  if (!in.error.empty()) return bad(in.error);
  record.event = std::move(*event);
  return record;
}

}  // namespace yoke
