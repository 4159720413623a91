#include "train/data/tokenizer.h"

#include "os/file.h"
#include "train/data/tokenizer_json.h"

namespace yoke {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  Result<void> encode(std::string_view text, std::vector<std::uint32_t>& out) const override {
    const std::size_t before = out.size();
    out.resize(before + text.size());
    for (std::size_t i = 0; i < text.size(); ++i) out[before + i] = static_cast<unsigned char>(text[i]);
    return {};
  }
  std::uint64_t vocab() const override { return 256; }
  std::string fingerprint() const override { return "bytes"; }
  bool cuts_anywhere() const override { return true; }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& name) {
  if (name == "bytes") return byte_tokenizer();
  const bool json = name.ends_with(".json");
  if (!json && !name.ends_with(".model"))
    return fail(ErrorKind::usage, fmt::format("data.tokenizer = \"{}\" is no tokeniser that Yoke knows", name),
                "\"bytes\", the path of a sentencepiece .model, or the path of a Hugging Face tokenizer.json");
  auto content = read_file(name);
  if (!content) return fail(content.error().kind, "data.tokenizer: " + content.error().what, content.error().hint);
  return json ? tokenizer_from_json(*content, name) : sentencepiece_tokenizer(*content, name);
}

}  // namespace yoke
