// Run specs: TOML text with a --set and an environment variable, and run.json. What is accepted must write and read
// back the same.
//
// The input is cut at zero bytes: the text; a --set; the variable of YOKE_DATA_TRAIN.
#include <string>
#include <string_view>

#include "core/base/text.h"
#include "core/spec/run_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const auto pieces = yoke::split(std::string_view(reinterpret_cast<const char*>(data), size), '\0');
  yoke::SpecSources sources{pieces[0], "fuzz.toml", {}, {}};
  if (pieces.size() > 1) sources.sets.push_back(pieces[1]);
  if (pieces.size() > 2) sources.environment.emplace_back("YOKE_DATA_TRAIN", pieces[2]);
  if (auto parsed = yoke::parse_run_spec(sources)) {
    const std::string text = yoke::to_json(*parsed);
    auto again = yoke::run_spec_from_json(text, "run.json");
    YOKE_CHECK(again.has_value(), "{}\n{}", again.error().what, text);
    YOKE_CHECK(yoke::to_json(*again) == text, "{}", text);
  } else {
    YOKE_CHECK(!parsed.error().hint.empty(), "no hint: {}", parsed.error().what);
  }
  auto from_json = yoke::run_spec_from_json(pieces[0], "run.json");
  YOKE_CHECK(from_json || !from_json.error().hint.empty(), "no hint: {}", from_json.error().what);
  return 0;
}
