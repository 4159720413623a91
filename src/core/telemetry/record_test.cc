#include "core/telemetry/record.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace yoke {
namespace {

Record full_step() {
  StepEvent step;
  step.step = 7;
  step.loss = 2.5;
  step.grad_norm = 0.1;
  step.learning_rate = 3e-4;
  step.loss_scale = 1024;
  step.tokens = 4096;
  step.seconds = {0.5, 0.01, 0.125, 0.25, 0.0625, 0.03, 0.02};
  step.memory = {1 << 30, 100, 200, 300, 400, 500, 600};
  step.sent_bytes = {{"data", 123}, {"tensor", 456}};
  step.tokens_per_second = 8192;
  step.mfu = 0.41;
  return {1'700'000'000'123'456'789, 3, step};
}

TEST(Record, StepIsWrittenWithTheNamesOfTheContract) {
  EXPECT_EQ(
      to_json_line(full_step()),
      R"({"schema":1,"time":1700000000.123456789,"rank":3,"kind":"step","step":7,"loss":2.5,"grad_norm":0.1,)"
      R"("learning_rate":0.0003,"loss_scale":1024,"tokens":4096,"seconds":{"total":0.5,"data":0.01,"forward":0.125,)"
      R"("backward":0.25,"optimizer":0.0625,"communication_exposed":0.03,"checkpoint":0.02},"memory":{)"
      R"("peak_bytes":1073741824,"parameters":100,"gradients":200,"optimizer":300,"activations":400,)"
      R"("communication":500,"checkpoint":600},"sent_bytes":{"data":123,"tensor":456},"tokens_per_second":8192,"mfu":0.41})");
}

TEST(Record, WhatIsNotKnownIsAbsent) {
  EXPECT_EQ(
      to_json_line({5, 0, StepEvent{}}),
      R"({"schema":1,"time":0.000000005,"rank":0,"kind":"step","step":0,"loss":0,"grad_norm":0,"learning_rate":0,)"
      R"("tokens":0,"seconds":{"total":0}})");
}

TEST(Record, KindsHaveTheirNames) {
  auto kind = [](Event event) {
    return nlohmann::json::parse(to_json_line({0, -1, std::move(event)})).at("kind").get<std::string>();
  };
  EXPECT_EQ(kind(StartEvent{}), "start");
  EXPECT_EQ(kind(ValidationEvent{}), "validation");
  EXPECT_EQ(kind(CheckpointEvent{}), "checkpoint");
  EXPECT_EQ(kind(MessageEvent{false, "a", ""}), "warning");
  EXPECT_EQ(kind(MessageEvent{true, "a", "b"}), "error");
  EXPECT_EQ(kind(RestartEvent{}), "restart");
  EXPECT_EQ(kind(EndEvent{}), "end");
}

TEST(Record, LossThatIsNotANumberSurvives) {
  StepEvent step;
  step.loss = std::nan("");
  step.grad_norm = HUGE_VAL;
  step.learning_rate = -HUGE_VAL;
  std::string line = to_json_line({0, 0, step});
  EXPECT_NE(line.find(R"("loss":"nan","grad_norm":"inf","learning_rate":"-inf")"), std::string::npos) << line;
  auto record = record_from_json_line(line);
  ASSERT_TRUE(record) << record.error().what;
  const auto& back = std::get<StepEvent>(record->event);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.grad_norm, HUGE_VAL);
  EXPECT_EQ(back.learning_rate, -HUGE_VAL);
}

TEST(Record, TextIsEscapedAndBytesThatAreNotUtf8AreReplaced) {
  std::string line = to_json_line({0, 0, MessageEvent{true, "a\"b\\c\n\x01 \xff \xc3\xa4 \xe2\x82", ""}});
  EXPECT_NE(line.find(R"("what":"a\"b\\c\u000a\u0001 )"), std::string::npos) << line;
  auto record = record_from_json_line(line);
  ASSERT_TRUE(record) << record.error().what;
  EXPECT_EQ(std::get<MessageEvent>(record->event).what, "a\"b\\c\n\x01 \uFFFD \u00e4 \uFFFD\uFFFD");
}

// Reads a line that is right but for its time.
Result<Record> with_time(const std::string& time) {
  return record_from_json_line(R"({"schema":1,"time":)" + time +
                               R"(,"rank":0,"kind":"end","step":1,"outcome":"done"})");
}

TEST(Record, TimeIsExactToTheNanosecond) {
  auto ns = [](const std::string& time) { return with_time(time).value().time_ns; };
  EXPECT_EQ(ns("1700000000.123456789"), 1'700'000'000'123'456'789);
  EXPECT_EQ(ns("1700000000.1"), 1'700'000'000'100'000'000);
  EXPECT_EQ(ns("1700000000"), 1'700'000'000'000'000'000);
  EXPECT_EQ(ns("1700000000.1234567891"), 1'700'000'000'123'456'789);
  EXPECT_EQ(ns("-0.000000001"), -1);
  EXPECT_FALSE(with_time("9223372037"));
  EXPECT_FALSE(with_time("1e9"));
  EXPECT_FALSE(with_time("\"now\""));
}

TEST(Record, WhatANewerWriterAddsIsPassedOver) {
  auto record = record_from_json_line(
      R"({"new":[1,{"step":9}],"schema":1,"time":2.5,"rank":0,"kind":"end","flag":true,"outcome":"done","step":4,)"
      R"("deep":{"er":{"step":8}},"nothing":null})");
  ASSERT_TRUE(record) << record.error().what;
  EXPECT_EQ(*record, (Record{2'500'000'000, 0, EndEvent{4, "done"}}));
}

TEST(Record, ErrorsNameWhatIsWrong) {
  auto what = [](std::string_view line) {
    auto record = record_from_json_line(line);
    return record ? "no error" : record.error().what;
  };
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"en)"), "telemetry record: it is not JSON, from byte 43 on");
  EXPECT_EQ(what(R"([1])"), "telemetry record: schema is missing");
  EXPECT_EQ(what(R"({"schema":2,"time":1.5,"rank":0,"kind":"end"})"),
            "telemetry record: schema is 2, this program reads 1");
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"dance"})"), "telemetry record: unknown kind \"dance\"");
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"end","outcome":"done"})"),
            "telemetry record: step is missing");
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"end","step":1.5,"outcome":"done"})"),
            "telemetry record: step is not an integer of 64 bits");
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"validation","step":1,"loss":"low","tokens":1})"),
            "telemetry record: loss is not a number");
  EXPECT_EQ(what(R"({"schema":1,"time":1.5,"rank":0,"kind":"step","step":1,"loss":1,"grad_norm":1,"learning_rate":1,)"
                 R"("tokens":1,"seconds":3})"),
            "telemetry record: seconds.total is missing");
}

double any_number() {
  return *rc::gen::suchThat<double>([](double d) { return std::isfinite(d); });
}
// Any text in UTF-8, control characters included.
std::string any_text() {
  std::string text;
  for (int point : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 0x800))) {
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else {
      text += {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
    }
  }
  return text;
}
std::int64_t any_integer() { return *rc::gen::arbitrary<std::int64_t>(); }
template <class Make>
auto maybe(Make make) {
  return *rc::gen::arbitrary<bool>() ? std::optional(make()) : std::nullopt;
}

Event any_event() {
  switch (*rc::gen::inRange(0, 7)) {
    case 0:
      return StartEvent{any_integer(),    any_integer(),   any_text(),
                        any_text(),       any_integer(),   any_integer(),
                        any_integer(),    maybe(any_text), {{any_text(), any_text()}},
                        maybe(any_number)};
    case 1: {
      StepEvent e;
      e.step = any_integer();
      e.loss = any_number();
      e.grad_norm = any_number();
      e.learning_rate = any_number();
      e.loss_scale = maybe(any_number);
      e.tokens = any_integer();
      e.seconds = {any_number(),      maybe(any_number), maybe(any_number), maybe(any_number),
                   maybe(any_number), maybe(any_number), maybe(any_number)};
      e.memory = {maybe(any_integer), maybe(any_integer), maybe(any_integer),
                  maybe(any_integer), maybe(any_integer), maybe(any_integer)};
      for (int i = *rc::gen::inRange(0, 3); i > 0; --i) e.sent_bytes[any_text()] = any_integer();
      e.tokens_per_second = maybe(any_number);
      e.mfu = maybe(any_number);
      return e;
    }
    case 2:
      return ValidationEvent{any_integer(), any_number(), any_integer()};
    case 3:
      return CheckpointEvent{any_integer(), any_text(), any_number(), any_integer()};
    case 4:
      return MessageEvent{*rc::gen::arbitrary<bool>(), any_text(), any_text()};
    case 5:
      return RestartEvent{any_integer(), any_text()};
    default:
      return EndEvent{any_integer(), any_text()};
  }
}

TEST(Record, EveryRecordRoundTrips) {
  ASSERT_TRUE(rc::check([] {
    Record record{any_integer(), any_integer(), any_event()};
    std::string line = to_json_line(record);
    RC_ASSERT(line.find('\n') == std::string::npos);
    auto back = record_from_json_line(line);
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == record);
  }));
}

}  // namespace
}  // namespace yoke
