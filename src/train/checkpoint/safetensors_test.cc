#include "train/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "train/checkpoint/checksum.h"
#include "train/checkpoint/test_tensors.h"

namespace yoke {
namespace {

using ::testing::HasSubstr;

const std::string golden = YOKE_SOURCE_DIR "/tests/golden/small.safetensors";  // by make_safetensors.py beside it

std::string file_of(std::string header, std::size_t data_bytes) {
  std::uint64_t size = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &size, 8);
  return text + header + std::string(data_bytes, 'x');
}

Result<std::map<std::string, TensorView>> parse(const std::string& text) {
  return parse_safetensors(std::as_bytes(std::span(text)), "file");
}

TEST(Safetensors, ReadsWhatTheReferenceWrote) {
  auto file = SafetensorsFile::open(golden);
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(file->names().size(), 13u);
  auto expect = [&]<class T>(const char* name, DType dtype, std::vector<std::int64_t> shape, std::vector<T> values) {
    const TensorView* view = file->find(name);
    ASSERT_NE(view, nullptr) << name;
    EXPECT_EQ(view->dtype, dtype) << name;
    EXPECT_EQ(view->shape, shape) << name;
    EXPECT_EQ(values_of<T>(*view), values) << name;
  };
  expect("f32", DType::f32, {2, 3}, std::vector<float>{0, 1.5, -2, 3.25, 4, 5});
  expect("bf16", DType::bf16, {3}, std::vector<std::uint16_t>{0x3f80, 0xc000, 0x3f00});
  expect("f16", DType::f16, {3}, std::vector<std::uint16_t>{0x3c00, 0xc000, 0x3800});
  expect("f64", DType::f64, {1}, std::vector<double>{0.1});
  expect("i64", DType::i64, {2}, std::vector<std::int64_t>{-1, std::int64_t{1} << 40});
  expect("i32", DType::i32, {2, 1}, std::vector<std::int32_t>{7, -7});
  expect("i16", DType::i16, {1}, std::vector<std::int16_t>{-300});
  expect("i8", DType::i8, {3}, std::vector<std::int8_t>{-5, 5, 6});
  expect("u8", DType::u8, {1}, std::vector<std::uint8_t>{255});
  expect("bool", DType::bool_, {2}, std::vector<std::uint8_t>{1, 0});
  expect("scalar", DType::f32, {}, std::vector<float>{42});
  expect("empty", DType::f32, {0, 5}, std::vector<float>{});
  expect("layer.0/odd \u00e9 \"name\"", DType::f32, {1}, std::vector<float>{1});
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Safetensors, WritesTheseBytes) {
  TemporaryFolder folder;
  std::vector<NamedTensor> tensors{test_tensor<std::uint8_t>("b", DType::u8, {1}, {7}),
                                   test_tensor<std::uint16_t>("a", DType::bf16, {}, {0x3f80})};
  auto written = write_safetensors(folder / "f", tensors, {{"format", "pt"}});
  ASSERT_TRUE(written) << written.error().what;
  // The wider type first; spaces up to a multiple of 8.
  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[0,2],"dtype":"BF16","shape":[]},)"
                       R"("b":{"data_offsets":[2,3],"dtype":"U8","shape":[1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string expected = file_of(header, 0) + std::string("\x80\x3f\x07", 3);
  auto text = read_file(folder / "f");
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, expected);
  EXPECT_EQ(written->bytes, expected.size());
  EXPECT_EQ(written->xxh3, checksum_of(expected));
}

TEST(Safetensors, AnyTensorsComeBack) {
  TemporaryFolder folder;
  ASSERT_TRUE(rc::check([&] {
    auto names = *rc::gen::container<std::set<std::string>>(
        rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '\x7f'))));
    names.erase("__metadata__");
    std::vector<NamedTensor> tensors;
    for (const std::string& name : names) {
      auto dtype = static_cast<DType>(*rc::gen::inRange(0, 10));
      auto shape =
          *rc::gen::resize(4, rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 5)));
      auto values = *rc::gen::container<std::vector<std::uint8_t>>(*tensor_bytes(dtype, shape),
                                                                   rc::gen::arbitrary<std::uint8_t>());
      tensors.push_back(test_tensor(name, dtype, shape, values));
    }
    auto written = write_safetensors(folder / "f", tensors, {});
    RC_ASSERT(written.has_value());
    auto text = read_file(folder / "f");
    RC_ASSERT(written->xxh3 == checksum_of(*text) && written->bytes == text->size());
    auto file = SafetensorsFile::open(folder / "f");
    RC_ASSERT(file.has_value());
    RC_ASSERT(file->names().size() == tensors.size());
    for (const NamedTensor& tensor : tensors) {
      const TensorView* view = file->find(tensor.name);
      RC_ASSERT(view != nullptr);
      RC_ASSERT(view->dtype == tensor.view.dtype && view->shape == tensor.view.shape);
      RC_ASSERT(std::ranges::equal(view->bytes, tensor.view.bytes));
      RC_ASSERT(view->bytes.empty() ||
                reinterpret_cast<std::uintptr_t>(view->bytes.data()) % byte_size(view->dtype) == 0);
    }
  }));
}

TEST(Safetensors, RefusesToWriteNonsense) {
  TemporaryFolder folder;
  auto error_of = [&](std::vector<NamedTensor> tensors) {
    auto written = write_safetensors(folder / "f", tensors, {});
    EXPECT_FALSE(written);
    return written ? "" : written.error().what;
  };
  auto one = test_tensor<float>("w", DType::f32, {1}, {1});
  EXPECT_THAT(error_of({one, one}), HasSubstr("two tensors are called w"));
  EXPECT_THAT(error_of({test_tensor<float>("w", DType::f32, {2}, {1})}), HasSubstr("shape [2] has 4 bytes"));
  EXPECT_THAT(error_of({test_tensor<float>("w", DType::f32, {-1}, {1})}), HasSubstr("shape [-1]"));
  EXPECT_THAT(error_of({test_tensor<float>("\xff", DType::f32, {1}, {1})}), HasSubstr("UTF-8"));
  EXPECT_EQ(list_folder(folder.path())->size(), 0u);
}

TEST(Safetensors, EveryDefectIsAnErrorThatNamesIt) {
  struct Case {
    std::string text, says;
  };
  auto tensor = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
  auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a +
           "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + b + "}}";
  };
  std::string huge_header = file_of("{}", 0);
  huge_header[3] = 0x10;
  const Case cases[] = {
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {huge_header, "its header has"},
      {file_of("", 0), "is not JSON"},
      {file_of("{", 0), "is not JSON"},
      {file_of("[]", 0), "no JSON object"},
      {file_of("{\"w\":1e999}", 0), "is not JSON"},
      {file_of("{\"w\":" + std::string(100000, '['), 0), "is not JSON"},
      {file_of("{\"w\":" + std::string(100, '[') + std::string(100, ']') + "}", 0), "nested deeper"},
      {file_of("{\"w\":3}", 0), "tensor w"},
      {file_of("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__"},
      {file_of("{\"__metadata__\":[]}", 0), "__metadata__"},
      {file_of("{\"\":{},\"\":{}}", 0), "twice"},
      {file_of("{\"a\":{\"shape\":[],\"shape\":[]}}", 0), "\"shape\" twice"},
      {file_of(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4), "no \"dtype\""},
      {file_of(tensor(R"("dtype":3,"shape":[1],"data_offsets":[0,4])"), 4), "\"dtype\" is no text"},
      {file_of(tensor(R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])"), 1), "type F8_E4M3"},
      {file_of(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4), "no \"shape\""},
      {file_of(tensor(R"("dtype":"F32","shape":4,"data_offsets":[0,4])"), 4), "\"shape\" is no list"},
      {file_of(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4), "-1 in shape"},
      {file_of(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4), "1.0 in shape"},
      {file_of(tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])"), 4), "in shape"},
      {file_of(tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4), "more than 2^64"},
      {file_of(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4), "needs 8 bytes, its offsets 0 to 4"},
      {file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4), "data_offsets [4, 0]"},
      {file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4), "data_offsets [0]"},
      {file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3), "the data at 3"},
      {file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5), "end at 4, the data at 5"},
      {file_of(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[1,5])"), 5), "tensor w lies at 1"},
      {file_of(two("[0,4]", "[2,6]"), 6), "tensor b lies at 2 to 6"},
      {file_of(two("[0,4]", "[5,9]"), 9), "tensor b lies at 5 to 9"},
      {file_of(two("[0,4]", "[0,4]"), 4), "tensor b lies at 0 to 4"},
  };
  for (const Case& c : cases) {
    auto parsed = parse(c.text);
    ASSERT_FALSE(parsed) << c.says;
    EXPECT_EQ(parsed.error().kind, ErrorKind::failed);
    EXPECT_THAT(parsed.error().what, HasSubstr(c.says));
    EXPECT_THAT(parsed.error().what, HasSubstr("file"));
  }
  EXPECT_TRUE(parse(file_of("{}", 0)));
  EXPECT_TRUE(parse(file_of(two("[4,8]", "[0,4]"), 8)));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  auto text = read_file(golden);
  ASSERT_TRUE(text);
  for (std::size_t size = 0; size < text->size(); ++size) EXPECT_FALSE(parse(text->substr(0, size))) << size;
  EXPECT_FALSE(parse(*text + "x"));
}

TEST(Safetensors, AbsentFileIsTheEnvironmentsFault) {
  auto file = SafetensorsFile::open("/nowhere/model.safetensors");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::environment);
  EXPECT_THAT(file.error().what, HasSubstr("/nowhere/model.safetensors: No such file"));
}

}  // namespace
}  // namespace yoke
