#include "train/data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string_view>

namespace yoke {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped, not converted");

constexpr std::string_view magic = "YOKETOKN";
constexpr std::uint32_t version = 1;
constexpr std::size_t header_bytes = 64;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version, width;
  std::uint64_t count, vocab, checksum;
  std::array<char, 24> zero;
};
static_assert(sizeof(Header) == header_bytes);

// llm.c: 256 int32.
constexpr std::size_t llmc_header_bytes = 1024;
struct LlmcKind {
  std::int32_t magic, version;
  int width;
};
constexpr std::array<LlmcKind, 2> llmc_kinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

template <class T>
T load(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
T largest(std::span<const std::byte> payload) {
  T most = 0;
  for (std::size_t i = 0; i < payload.size() / sizeof(T); ++i) most = std::max(most, load<T>(payload, i));
  return most;
}

template <class T>
void widen(std::span<const std::byte> payload, std::uint64_t first, std::span<std::int64_t> out) {
  payload = payload.subspan(first * sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load<T>(payload, i);
}

template <class T>
void narrow(std::span<const std::uint32_t> tokens, std::byte* out) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

// Calls f<T>() with the unsigned type of that many bytes.
template <class F>
auto with_width(int width, F f) {
  if (width == 1) return f.template operator()<std::uint8_t>();
  if (width == 2) return f.template operator()<std::uint16_t>();
  return f.template operator()<std::uint32_t>();
}

// count comes from a file: count * width may not fit 64 bits.
bool fits(std::uint64_t have, std::size_t header, std::uint64_t count, int width) {
  return have >= header && (have - header) % static_cast<std::uint64_t>(width) == 0 &&
         (have - header) / static_cast<std::uint64_t>(width) == count;
}

tl::unexpected<Error> wrong_size(const std::string& name, std::uint64_t have, std::size_t header, std::uint64_t count,
                                 int width) {
  return fail(ErrorKind::environment,
              fmt::format("{} has {} bytes, but its header says {} tokens of {} bytes, which is {:.0f} bytes", name,
                          have, count, width, static_cast<double>(count) * width + static_cast<double>(header)),
              "the file was cut or is still being written: copy or make it again");
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& path) {
  YOKE_TRY(MappedFile mapped, MappedFile::open(path));
  YOKE_TRY(TokenFile file, over(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<TokenFile> TokenFile::over(std::span<const std::byte> bytes, const std::string& name) {
  TokenFile file;
  file.name_ = name;
  if (bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0) {
    if (bytes.size() < header_bytes)
      return fail(ErrorKind::environment,
                  fmt::format("{} has {} bytes, less than its header of {}", name, bytes.size(), header_bytes),
                  "the file was cut: copy or make it again");
    const Header header = load<Header>(bytes, 0);
    if (header.version != version)
      return fail(
          ErrorKind::environment,
          fmt::format("{} is a token file of version {}; this Yoke reads version {}", name, header.version, version),
          "use the Yoke that made it, or make it again");
    if (header.width != 1 && header.width != 2 && header.width != 4)
      return fail(ErrorKind::environment, fmt::format("{}: {} bytes a token; it can be 1, 2 or 4", name, header.width),
                  "the header is damaged: copy or make the file again");
    if (header.vocab == 0 || header.vocab > std::uint64_t{1} << (8 * header.width))
      return fail(ErrorKind::environment,
                  fmt::format("{}: a vocabulary of {} does not fit {} bytes a token", name, header.vocab, header.width),
                  "the header is damaged: copy or make the file again");
    file.width_ = static_cast<int>(header.width);
    if (!fits(bytes.size(), header_bytes, header.count, file.width_))
      return wrong_size(name, bytes.size(), header_bytes, header.count, file.width_);
    file.vocab_ = header.vocab;
    file.checksum_ = header.checksum;
    file.payload_ = bytes.subspan(header_bytes);
    return file;
  }
  for (const LlmcKind& kind : llmc_kinds) {
    if (bytes.size() < llmc_header_bytes || load<std::int32_t>(bytes, 0) != kind.magic) continue;
    const auto file_version = load<std::int32_t>(bytes, 1);
    if (file_version != kind.version)
      return fail(ErrorKind::environment,
                  fmt::format("{} is an llm.c token file of version {}; this Yoke reads version {}", name, file_version,
                              kind.version));
    const auto count = static_cast<std::uint32_t>(load<std::int32_t>(bytes, 2));
    if (!fits(bytes.size(), llmc_header_bytes, count, kind.width))
      return wrong_size(name, bytes.size(), llmc_header_bytes, count, kind.width);
    file.width_ = kind.width;
    file.payload_ = bytes.subspan(llmc_header_bytes);
    return file;
  }
  if (bytes.size() % 2 != 0)
    return fail(ErrorKind::environment,
                fmt::format("{} has {} bytes: without a header it should be 16-bit tokens, an even number of bytes",
                            name, bytes.size()),
                "a text file must not be named .bin; a token file may have been cut");
  file.payload_ = bytes;
  return file;
}

Result<std::uint64_t> TokenFile::check() const {
  // In pieces, so that both passes over a piece find it in the cache.
  constexpr std::size_t piece_bytes = std::size_t{1} << 18;
  std::uint64_t most = 0;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (std::size_t at = 0; at < payload_.size(); at += piece_bytes) {
    const auto piece = payload_.subspan(at, std::min(piece_bytes, payload_.size() - at));
    if (checksum_) XXH3_64bits_update(state.get(), piece.data(), piece.size());
    most = std::max(most, with_width(width_, [&]<class T>() { return std::uint64_t{largest<T>(piece)}; }));
  }
  if (checksum_ && XXH3_64bits_digest(state.get()) != *checksum_)
    return fail(ErrorKind::environment, fmt::format("{} is damaged: its tokens do not match its checksum", name_),
                "copy or make it again");
  if (vocab_ && size() > 0 && most >= *vocab_)
    return fail(ErrorKind::environment,
                fmt::format("{} holds token {}, outside of its vocabulary of {}", name_, most, *vocab_),
                "make it again");
  return vocab_.value_or(most + 1);
}

void TokenFile::read(std::uint64_t first, std::span<std::int64_t> out) const {
  YOKE_CHECK(first <= size() && out.size() <= size() - first, "tokens {} to {} of {} in {}", first, first + out.size(),
             size(), name_);
  with_width(width_, [&]<class T>() { widen<T>(payload_, first, out); });
}

TokenWriter::TokenWriter(std::uint64_t vocab)
    : vocab_(vocab),
      width_(vocab <= std::uint64_t{1} << 8    ? 1
             : vocab <= std::uint64_t{1} << 16 ? 2
                                               : 4) {
  YOKE_CHECK(vocab > 0 && vocab <= std::uint64_t{1} << 32, "a vocabulary of {}", vocab);
}

void TokenWriter::append(std::span<const std::uint32_t> tokens) {
  const auto most = std::max_element(tokens.begin(), tokens.end());
  YOKE_CHECK(most == tokens.end() || *most < vocab_, "token {} in a vocabulary of {}", *most, vocab_);
  const std::size_t before = payload_.size();
  payload_.resize(before + tokens.size() * static_cast<std::size_t>(width_));
  with_width(width_, [&]<class T>() { narrow<T>(tokens, payload_.data() + before); });
}

Result<void> TokenWriter::write(const std::string& path) const {
  Header header{{},     version, static_cast<std::uint32_t>(width_),
                size(), vocab_,  XXH3_64bits(payload_.data(), payload_.size()),
                {}};
  std::copy(magic.begin(), magic.end(), header.magic.begin());
  YOKE_TRY(OutputFile file, OutputFile::create(path, header_bytes + payload_.size()));
  YOKE_TRY_VOID(file.write(std::as_bytes(std::span(&header, 1))));
  YOKE_TRY_VOID(file.write(payload_));
  return file.commit();
}

}  // namespace yoke
