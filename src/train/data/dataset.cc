#include "train/data/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "core/base/text.h"
#include "train/data/token_cache.h"
#include "train/data/tokenizer.h"

namespace yoke {
namespace {

Result<std::string> cache_folder(const DataSpec& spec) {
  if (!spec.cache.empty()) return spec.cache;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/yoke/tokens";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/yoke/tokens";
  return fail(ErrorKind::environment,
              "no folder for token files: neither data.cache nor XDG_CACHE_HOME nor HOME is set", "set data.cache");
}

Result<std::vector<std::string>> expand(const std::vector<std::string>& patterns, const std::string& key) {
  if (patterns.empty()) return fail(ErrorKind::usage, key + " names no file", "give it at least one file or pattern");
  std::vector<std::string> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    YOKE_TRY(const auto matches, expand_glob(pattern));
    if (matches.empty())
      return fail(ErrorKind::usage, fmt::format("no file matches {} = \"{}\"", key, pattern),
                  "check the path; ** stands for any number of folders");
    for (const std::string& match : matches)
      if (seen.insert(match).second) files.push_back(match);
  }
  return files;
}

bool is_token_file(const std::string& path) { return path.ends_with(".bin"); }

class Loader {
 public:
  Loader(const DataSpec& spec, TokenCache cache, std::vector<std::string>& notes)
      : spec_(spec), cache_(std::move(cache)), notes_(notes) {}

  Result<Tokens> load(const std::vector<std::string>& patterns, const std::string& key) {
    YOKE_TRY(const auto files, expand(patterns, key));
    std::vector<std::shared_ptr<const TokenFile>> opened;
    std::uint64_t vocab = 0;
    for (std::size_t at = 0; at < files.size();) {
      // A token file, or texts up to the next one.
      const auto first = files.begin() + static_cast<std::ptrdiff_t>(at);
      const auto texts = static_cast<std::size_t>(std::find_if(first, files.end(), is_token_file) - first);
      YOKE_TRY(auto checked, texts == 0 ? cache_.open(*first) : tokenise(std::span(files).subspan(at, texts)));
      at += std::max<std::size_t>(texts, 1);
      (texts == 0 ? token_files : text_files) += std::max<std::size_t>(texts, 1);
      vocab = std::max(vocab, checked.vocab);
      opened.push_back(std::move(checked.file));
    }
    return Tokens(std::move(opened), vocab);
  }

  std::size_t text_files = 0, token_files = 0;

 private:
  Result<CheckedFile> tokenise(std::span<const std::string> texts) {
    if (!tokenizer_) {
      YOKE_TRY(tokenizer_, open_tokenizer(spec_.tokenizer));
    }
    return cache_.tokenise(texts, *tokenizer_, notes_);
  }

  const DataSpec& spec_;
  const TokenCache cache_;
  std::vector<std::string>& notes_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

std::string plural(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", format_thousands(static_cast<std::int64_t>(count)), noun, count == 1 ? "" : "s");
}

Result<void> check_length(const Tokens& tokens, const DataSpec& spec, const std::string& what) {
  const auto needed = static_cast<std::uint64_t>(spec.sequence) + 1;
  if (tokens.size() >= needed) return {};
  return fail(ErrorKind::usage,
              fmt::format("{} {} tokens; a sequence of {} needs {}", what, tokens.size(), spec.sequence, needed),
              "add data, or make data.sequence shorter");
}

// Cuts the validation part off the end of dataset.train.
Result<void> cut_validation(const DataSpec& spec, Dataset& dataset) {
  const Tokens all = dataset.train;
  const auto sequence = static_cast<std::uint64_t>(spec.sequence);
  const double share = std::clamp(spec.validation_share, 0.0, 1.0);
  const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(all.size()));
  if (wanted <= sequence) {
    if (share > 0)
      dataset.notes.push_back(
          fmt::format("no validation: a share of {} of {} tokens is {}, and a sequence of {} needs {}", share,
                      all.size(), wanted, sequence, sequence + 1));
    return {};
  }
  const std::uint64_t cut = (all.size() - std::min(wanted, all.size())) / sequence * sequence;
  dataset.train = all.part(0, cut);
  dataset.validation = all.part(cut, all.size() - cut);
  return check_length(
      dataset.train, spec,
      fmt::format("data.train holds {} tokens; beside a validation share of {} there are", all.size(), share));
}

}  // namespace

Result<Dataset> open_dataset(const DataSpec& spec) {
  YOKE_CHECK(spec.sequence > 0, "a sequence of {}", spec.sequence);
  YOKE_TRY(const std::string folder, cache_folder(spec));
  Dataset dataset;
  Loader loader(spec, TokenCache(folder), dataset.notes);
  YOKE_TRY(dataset.train, loader.load(spec.train, "data.train"));
  YOKE_TRY_VOID(check_length(dataset.train, spec, "data.train holds"));
  const std::size_t text_files = loader.text_files, token_files = loader.token_files;
  if (spec.validation.empty()) {
    YOKE_TRY_VOID(cut_validation(spec, dataset));
  } else {
    YOKE_TRY(dataset.validation, loader.load(spec.validation, "data.validation"));
    YOKE_TRY_VOID(check_length(*dataset.validation, spec, "data.validation holds"));
  }

  std::vector<std::string> files;
  if (text_files > 0) files.push_back(plural(text_files, "text file"));
  if (token_files > 0) files.push_back(plural(token_files, "token file"));
  dataset.description =
      fmt::format("{}, {} tokens", join(files, " and "), format_count(static_cast<double>(dataset.train.size())));
  if (text_files > 0) dataset.description += fmt::format(" ({})", spec.tokenizer);
  if (dataset.validation)
    dataset.description +=
        fmt::format(", {} more for validation", format_count(static_cast<double>(dataset.validation->size())));
  return dataset;
}

}  // namespace yoke
