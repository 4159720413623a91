// The sentencepiece half of tokenizer.h.
#include <sentencepiece_processor.h>

#include <exception>
#include <utility>

#include "train/data/hash.h"
#include "train/data/tokenizer.h"

namespace yoke {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor, std::string file,
                         std::string fingerprint)
      : processor_(std::move(processor)), file_(std::move(file)), fingerprint_(std::move(fingerprint)) {}

  Result<void> encode(std::string_view text, std::vector<std::uint32_t>& out) const override try {
    // The library takes a text as one sentence and counts its parts in int.
    constexpr std::size_t longest = std::size_t{256} << 20;
    if (text.size() > longest)
      return fail(ErrorKind::usage,
                  fmt::format("a text of {} bytes, more than {} takes at once ({})", text.size(), file_, longest),
                  "cut the text into several files");
    std::vector<int> ids;
    const auto status = processor_->Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok()) return fail(ErrorKind::failed, fmt::format("{}: {}", file_, status.ToString()));
    out.insert(out.end(), ids.begin(), ids.end());
    return {};
  } catch (const std::exception& e) {
    return fail(ErrorKind::failed, fmt::format("{}: {}", file_, e.what()));
  }
  std::uint64_t vocab() const override { return static_cast<std::uint64_t>(processor_->GetPieceSize()); }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::string file_, fingerprint_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> sentencepiece_tokenizer(const std::string& content, const std::string& file) try {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(content);
  if (!status.ok() || processor->GetPieceSize() == 0)
    return fail(ErrorKind::usage, fmt::format("{} is no sentencepiece model: {}", file, status.ToString()),
                "is this a whole .model file of sentencepiece?");
  return std::make_unique<SentencePieceTokenizer>(std::move(processor), file, "sentencepiece-" + content_hash(content));
} catch (const std::exception& e) {
  return fail(ErrorKind::usage, fmt::format("{}: {}", file, e.what()), "is this a whole .model file of sentencepiece?");
}

}  // namespace yoke
