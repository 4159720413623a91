#include "train/data/token_cache.h"

#include <filesystem>
#include <system_error>

#include "core/base/text.h"
#include "train/data/file_lock.h"
#include "train/data/hash.h"

namespace yoke {
namespace {

// Which version of a file this is: its absolute path, size and modification time.
Result<std::string> version_of(const std::string& path) {
  std::error_code code;
  const auto absolute = std::filesystem::absolute(path, code);
  if (code) return fail(ErrorKind::environment, fmt::format("cannot read {}: {}", path, code.message()));
  const auto time = std::filesystem::last_write_time(path, code);
  if (code)
    return fail(ErrorKind::environment, fmt::format("cannot read {}: {}", path, code.message()), "check the path");
  YOKE_TRY(const auto size, file_size(path));
  return fmt::format("{}\n{} {}\n", absolute.lexically_normal().string(), size, time.time_since_epoch().count());
}

Result<void> append_text(const std::string& path, const Tokenizer& tokenizer, TokenWriter& writer) {
  YOKE_TRY(const std::string text, read_file(path));
  const std::size_t piece = tokenizer.cuts_anywhere() ? std::size_t{1} << 16 : text.size();
  std::vector<std::uint32_t> tokens;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    tokens.clear();
    const auto done = tokenizer.encode(std::string_view(text).substr(at, piece), tokens);
    if (!done) return fail(done.error().kind, fmt::format("{}: {}", path, done.error().what), done.error().hint);
    writer.append(tokens);
  }
  return {};
}

// What a killed process left of this file; only whoever holds the lock may ask.
void remove_leftovers(const std::string& folder, const std::string& name) {
  const auto names = list_folder(folder);
  if (!names) return;
  for (const std::string& left : *names)
    if (left.starts_with(name + ".")) (void)remove_tree(folder + "/" + left);
}

}  // namespace

Result<CheckedFile> TokenCache::open(const std::string& path) const {
  YOKE_TRY(const std::string version, version_of(path));
  YOKE_TRY(auto opened, TokenFile::open(path));
  CheckedFile checked{std::make_shared<const TokenFile>(std::move(opened)), 0};
  const std::string stamp = fmt::format("{}/{}.checked", folder_, content_hash(version));
  if (const auto known = read_file(stamp)) {
    const auto vocab = parse_integer(trim(*known)).value_or(0);
    checked.vocab = checked.file->vocab().value_or(static_cast<std::uint64_t>(vocab));
    if (vocab > 0 && checked.vocab == static_cast<std::uint64_t>(vocab)) return checked;
  }
  YOKE_TRY(checked.vocab, checked.file->check());
  // Without a stamp the file is read again next time; that is all.
  if (make_folders(folder_)) (void)write_file_atomically(stamp, fmt::format("{}\n", checked.vocab));
  return checked;
}

Result<CheckedFile> TokenCache::tokenise(std::span<const std::string> texts, const Tokenizer& tokenizer,
                                         std::vector<std::string>& notes) const {
  std::string key = "yoke tokens 1\n" + tokenizer.fingerprint() + "\n";
  for (const std::string& text : texts) {
    YOKE_TRY(const std::string version, version_of(text));
    key += version;
  }
  const std::string name = content_hash(key), file_name = name + ".bin", path = folder_ + "/" + file_name;

  const auto ours = [&]() -> Result<CheckedFile> {
    YOKE_TRY(CheckedFile file, open(path));
    // Without a header anything passes for bare tokens.
    if (file.file->vocab() != tokenizer.vocab())
      return fail(ErrorKind::environment, fmt::format("{} is not what was written there", path));
    return file;
  };
  if (exists(path)) {
    if (auto ready = ours()) return ready;
  }
  YOKE_TRY_VOID(make_folders(folder_));
  YOKE_TRY(const FileLock lock, FileLock::wait_for(fmt::format("{}/{}.lock", folder_, name)));
  if (exists(path)) {
    auto ready = ours();  // made while this one waited
    if (ready) return ready;
    notes.push_back(fmt::format("{}; made it again from the text", ready.error().what));
  }
  remove_leftovers(folder_, file_name);

  TokenWriter writer(tokenizer.vocab());
  for (const std::string& text : texts) YOKE_TRY_VOID(append_text(text, tokenizer, writer));
  YOKE_TRY_VOID(writer.write(path));
  return ours();
}

}  // namespace yoke
