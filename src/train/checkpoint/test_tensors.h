// For this room's tests: tensors with known numbers, and checkpoints whose every number follows from their step.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"

namespace yoke {

template <class T>
NamedTensor test_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape, std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return {std::move(name), {dtype, std::move(shape), std::as_bytes(std::span(*owner))}, owner};
}

template <class T>
std::vector<T> values_of(const TensorView& view) {
  std::vector<T> values(view.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return values;
}

inline constexpr int test_weights = 5;

inline std::string test_weight(int index) { return "layers." + std::to_string(index) + ".weight"; }

// Different for every step, tensor and kind, and exact in float.
inline std::vector<float> test_values(std::int64_t step, int index, float kind) {
  std::vector<float> values(static_cast<std::size_t>(50 + 100 * index));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(step * 1000) + static_cast<float>(index * 100) + kind + static_cast<float>(i) / 1024;
  return values;
}

inline CheckpointJob test_job(std::int64_t step, int rank, int ranks) {
  CheckpointJob job;
  job.step = step;
  for (int i = rank; i < test_weights; i += ranks) {
    auto tensor = [&](const std::string& name, float kind) {
      auto values = test_values(step, i, kind);
      auto size = static_cast<std::int64_t>(values.size());
      return test_tensor(name, DType::f32, {size / 10, 10}, std::move(values));
    };
    job.model.push_back(tensor(test_weight(i), 0));
    job.optimizer.push_back(tensor(test_weight(i) + ".exp_avg", 1));
    job.optimizer.push_back(tensor(test_weight(i) + ".exp_avg_sq", 2));
  }
  job.config_json = "{\"model_type\": \"llama\"}\n";
  job.state_json = "{\"seed\": 1, \"next_step\": " + std::to_string(step) + "}";
  return job;
}

// All tensors, none else, each with the numbers of that step.
inline void expect_checkpoint(const CheckpointReader& reader, std::int64_t step) {
  EXPECT_EQ(reader.step(), step);
  EXPECT_EQ(reader.state_json(), "{\"next_step\":" + std::to_string(step) + ",\"seed\":1}");
  EXPECT_EQ(reader.model_names().size(), std::size_t{test_weights});
  EXPECT_EQ(reader.optimizer_names().size(), std::size_t{2 * test_weights});
  auto expect = [&](const TensorView* view, int i, float kind) {
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(view->dtype, DType::f32);
    EXPECT_EQ(view->shape, (std::vector<std::int64_t>{5 + 10 * i, 10}));
    EXPECT_EQ(values_of<float>(*view), test_values(step, i, kind));
  };
  for (int i = 0; i < test_weights; ++i) {
    expect(reader.find_model(test_weight(i)), i, 0);
    expect(reader.find_optimizer(test_weight(i) + ".exp_avg"), i, 1);
    expect(reader.find_optimizer(test_weight(i) + ".exp_avg_sq"), i, 2);
  }
}

// Writes one checkpoint with one writer and waits for it.
inline Result<void> write_test_checkpoint(const CheckpointWriter::Options& options, std::int64_t step) {
  CheckpointWriter writer(options);
  YOKE_TRY_VOID(writer.submit(test_job(step, static_cast<int>(options.rank), static_cast<int>(options.ranks))));
  return writer.finish();
}

// The same by so many ranks, as threads.
inline void write_test_checkpoint_by(int ranks, const std::string& root, std::int64_t step,
                                     const std::string& attempt) {
  std::vector<std::future<Result<void>>> results;
  for (int rank = 0; rank < ranks; ++rank)
    results.push_back(std::async(std::launch::async, [=] {
      return write_test_checkpoint(
          {.root = root, .rank = rank, .ranks = ranks, .keep = 10, .timeout = 60, .attempt = attempt}, step);
    }));
  for (auto& result : results) {
    auto written = result.get();
    ASSERT_TRUE(written) << written.error().what;
  }
}

}  // namespace yoke
