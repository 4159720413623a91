#include "train/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "train/checkpoint/checksum.h"
#include "train/checkpoint/json_object.h"

namespace yoke {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors and the header's length are little-endian");

constexpr std::uint64_t largest_header = 100'000'000;  // the reference implementation's bound
constexpr const char* metadata_key = "__metadata__";

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// The header with its length before it, for tensors in the order in which they are written.
Result<std::string> header_of(const std::string& path, std::span<const NamedTensor* const> tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : tensors) {
    const TensorView& view = tensor->view;
    if (header.contains(tensor->name) || tensor->name == metadata_key)
      return fail(ErrorKind::failed, fmt::format("{}: two tensors are called {}", path, tensor->name));
    if (tensor_bytes(view.dtype, view.shape) != view.bytes.size())
      return fail(ErrorKind::failed,
                  fmt::format("{}: tensor {} of type {} and shape {} has {} bytes", path, tensor->name,
                              name(view.dtype), shape_text(view.shape), view.bytes.size()));
    std::uint64_t end = offset + view.bytes.size();
    header[tensor->name] = {{"dtype", name(view.dtype)}, {"shape", view.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorKind::failed, fmt::format("{}: a name is not UTF-8: {}", path, error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > largest_header)
    return fail(ErrorKind::failed, fmt::format("{}: {} tensors need a header of {} bytes, above the format's {}", path,
                                               tensors.size(), text.size(), largest_header));
  std::string length(8, '\0');
  std::uint64_t size = text.size();
  std::memcpy(length.data(), &size, 8);
  return length + text;
}

}  // namespace

Result<WrittenFile> write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return byte_size(a->view.dtype) > byte_size(b->view.dtype);
  });
  YOKE_TRY(std::string header, header_of(path, order, metadata));
  WrittenFile written;
  written.bytes = header.size();
  for (const NamedTensor* tensor : order) written.bytes += tensor->view.bytes.size();

  YOKE_TRY(OutputFile file, OutputFile::create(path, written.bytes));
  Checksum checksum;
  auto write = [&](std::span<const std::byte> bytes) -> Result<void> {
    // In pieces that are still in the cache when the kernel copies them.
    constexpr std::size_t piece = std::size_t{1} << 20;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size()))) {
      auto now = bytes.first(std::min(piece, bytes.size()));
      checksum.add(now);
      YOKE_TRY_VOID(file.write(now));
    }
    return {};
  };
  YOKE_TRY_VOID(write(std::as_bytes(std::span(header))));
  for (const NamedTensor* tensor : order) YOKE_TRY_VOID(write(tensor->view.bytes));
  YOKE_TRY_VOID(file.commit());
  written.xxh3 = checksum.value();
  return written;
}

namespace {

struct Entry {
  std::string name;
  TensorView view;
  std::uint64_t begin = 0, end = 0;
};

Result<Entry> parse_entry(const std::string& tensor, const nlohmann::json& value, const std::string& file) {
  std::string where = fmt::format("{}: tensor {}", file, tensor);
  if (!value.is_object()) return fail(ErrorKind::failed, where + " is described by no JSON object");
  Entry entry;
  entry.name = tensor;
  YOKE_TRY(std::string type, string_member(value, "dtype", where));
  auto dtype = dtype_from_name(type);
  if (!dtype) return fail(ErrorKind::failed, fmt::format("{} has type {}, which is not known", where, type));
  entry.view.dtype = *dtype;

  auto numbers = [&](const char* key) -> Result<std::vector<std::uint64_t>> {
    YOKE_TRY(auto list, array_member(value, key, where));
    std::vector<std::uint64_t> read;
    for (const auto& item : list) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > INT64_MAX)
        return fail(ErrorKind::failed, fmt::format("{}: {} in {} is no size", where, item.dump(), key));
      read.push_back(item.get<std::uint64_t>());
    }
    return read;
  };
  YOKE_TRY(auto shape, numbers("shape"));
  entry.view.shape.assign(shape.begin(), shape.end());
  YOKE_TRY(auto offsets, numbers("data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    return fail(ErrorKind::failed, fmt::format("{} has data_offsets [{}]", where, fmt::join(offsets, ", ")));
  entry.begin = offsets[0];
  entry.end = offsets[1];

  auto bytes = tensor_bytes(*dtype, entry.view.shape);
  if (bytes != entry.end - entry.begin)
    return fail(ErrorKind::failed,
                fmt::format("{} of type {} and shape {} needs {} bytes, its offsets {} to {} span {}", where, type,
                            shape_text(entry.view.shape), bytes ? fmt::to_string(*bytes) : "more than 2^64",
                            entry.begin, entry.end, entry.end - entry.begin));
  return entry;
}

Result<void> check_metadata(const nlohmann::json& value, const std::string& file) {
  bool texts =
      value.is_object() && std::all_of(value.begin(), value.end(), [](const auto& v) { return v.is_string(); });
  if (!texts) return fail(ErrorKind::failed, fmt::format("{}: {} is not from text to text", file, metadata_key));
  return {};
}

}  // namespace

Result<std::map<std::string, TensorView>> parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8)
    return fail(ErrorKind::failed, fmt::format("{} has {} bytes, too few for safetensors", file, bytes.size()));
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  bytes = bytes.subspan(8);
  if (header_size > largest_header || header_size > bytes.size())
    return fail(ErrorKind::failed,
                fmt::format("{} says that its header has {} bytes; {} bytes follow, and {} are allowed", file,
                            header_size, bytes.size(), largest_header));
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), header_size);
  std::span<const std::byte> data = bytes.subspan(header_size);
  YOKE_TRY(nlohmann::json header, parse_json_object(text, file + " (header)"));

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == metadata_key) {
      YOKE_TRY_VOID(check_metadata(value, file));
      continue;
    }
    YOKE_TRY(Entry entry, parse_entry(name, value, file));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::map<std::string, TensorView> tensors;
  std::uint64_t expected = 0;
  for (Entry& entry : entries) {
    if (entry.begin != expected || entry.end > data.size())
      return fail(ErrorKind::failed,
                  fmt::format("{}: tensor {} lies at {} to {}, but the one before ends at {} and the data at {}", file,
                              entry.name, entry.begin, entry.end, expected, data.size()));
    expected = entry.end;
    entry.view.bytes = data.subspan(entry.begin, entry.end - entry.begin);
    tensors.emplace(std::move(entry.name), std::move(entry.view));
  }
  if (expected != data.size())
    return fail(ErrorKind::failed,
                fmt::format("{}: the tensors end at {}, the data at {}", file, expected, data.size()));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  YOKE_TRY(MappedFile file, MappedFile::open(path));
  YOKE_TRY(auto tensors, parse_safetensors(file.bytes(), path));
  return SafetensorsFile(path, std::move(file), std::move(tensors));
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace yoke
