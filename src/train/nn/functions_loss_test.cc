#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include "core/parallel/head_rows.h"
#include "train/nn/functions.h"
#include "train/nn/test_functions.h"

namespace yoke {
namespace {

using Tensors = std::vector<at::Tensor>;

class HeadLoss : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
  const at::ScalarType type = GetParam();
};

INSTANTIATE_TEST_SUITE_P(All, HeadLoss, testing::ValuesIn(all_types),
                         [](const auto& each) { return c10::toString(each.param); });

at::Tensor plain_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale) {
  at::Tensor log_probability = at::log_softmax(hidden.matmul(weight.t()), -1);
  at::Tensor counted = targets.ge(0);
  at::Tensor chosen = log_probability.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -(chosen * counted).sum() * scale;
}

// Some targets do not count.
at::Tensor make_targets(std::int64_t rows, std::int64_t vocab) {
  at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
  for (std::int64_t i = 0; i < rows; i += 5) targets[i] = -100;
  return targets;
}

TEST_P(HeadLoss, EqualsLogSoftmax) {
  with_threads([&] {
    for (std::int64_t rows : {1, 3, 70})
      for (std::int64_t vocab : {1, 37, 130})
        for (std::int64_t at_once : {1000, 16, 1}) {
          SCOPED_TRACE(testing::Message() << rows << " rows, vocab " << vocab << ", at once " << at_once);
          at::Tensor targets = make_targets(rows, vocab);
          if (rows > 1) targets[rows - 1] = vocab - 1;
          auto ours = [&](const Tensors& in) { return head_loss(in[0], in[1], targets, 0.37, at_once); };
          auto reference = [&](const Tensors& in) { return plain_loss(in[0], in[1], targets, 0.37); };
          // With one word nothing is to be lost, and the gradient is the logits' rounding.
          if (vocab == 1) {
            at::Tensor loss = ours({numbers({rows, 33}, type), numbers({vocab, 33}, type)});
            EXPECT_NEAR(loss.item<double>(), 0, 1e-6 * static_cast<double>(rows));
          } else if (rows > 1) {
            // A logit of size 3 is rounded to its type, too.
            expect_same(ours, reference, {numbers({rows, 33}, type, 0.5), numbers({vocab, 33}, type)}, 3, 6);
          } else {
            EXPECT_EQ(ours({numbers({rows, 33}, type), numbers({vocab, 33}, type)}).item<double>(), 0)
                << "no row counts";
          }
        }
  });
}

// What the weight's gradient is off: in many pieces no more than in one.
TEST_P(HeadLoss, PiecesAreAsPreciseAsTheWhole) {
  const std::int64_t rows = 1024, vocab = 53, n = 40;
  at::Tensor hidden = numbers({rows, n}, type, 0.3) + 0.2, weight = numbers({vocab, n}, type),
             targets = make_targets(rows, vocab);
  at::Tensor exact = weight.to(at::kDouble).clone().requires_grad_(true);
  plain_loss(hidden.to(at::kDouble), exact, targets, 1).backward();
  auto error = [&](std::int64_t at_once) {
    at::Tensor h = hidden.detach().requires_grad_(true), w = weight.clone().requires_grad_(true);
    head_loss(h, w, targets, 1, at_once).backward();
    return relative_error(w.grad(), exact.grad());
  };
  const double whole = error(rows), pieces = error(8);
  RecordProperty("whole", fmt::format("{:.3g}", whole));
  RecordProperty("pieces", fmt::format("{:.3g}", pieces));
  EXPECT_LT(whole, tolerance(type, 2));
  EXPECT_LT(pieces, 1.25 * whole + tolerance(type, 0));
}

// An upstream gradient beyond fp16, as a loss scale may be, multiplies what is within it.
TEST_P(HeadLoss, UpstreamGradients) {
  at::Tensor targets = make_targets(9, 37), hidden = numbers({9, 33}, type), weight = numbers({37, 33}, type);
  for (std::int64_t at_once : {9, 2}) {
    at::Tensor h = hidden.clone().requires_grad_(true), w = weight.clone().requires_grad_(true);
    (head_loss(h, w, targets, 1.0 / 64, at_once) * 0x1p18).backward();
    at::Tensor x = hidden.to(at::kDouble).clone().requires_grad_(true),
               v = weight.to(at::kDouble).clone().requires_grad_(true);
    plain_loss(x, v, targets, 0x1p12).backward();
    EXPECT_LT(relative_error(h.grad(), x.grad()), tolerance(type, 8));
    EXPECT_LT(relative_error(w.grad(), v.grad()), tolerance(type, 8));
  }
}

TEST_P(HeadLoss, FrozenInputsGetNoGradient) {
  at::Tensor targets = make_targets(9, 37), hidden = numbers({9, 33}, type), weight = numbers({37, 33}, type);
  for (std::int64_t at_once : {9, 2})
    for (bool train_hidden : {true, false}) {
      at::Tensor h = hidden.clone().requires_grad_(train_hidden), w = weight.clone().requires_grad_(!train_hidden);
      head_loss(h, w, targets, 1, at_once).backward();
      EXPECT_EQ(h.grad().defined(), train_hidden);
      EXPECT_EQ(w.grad().defined(), !train_hidden);
      at::Tensor h2 = hidden.clone().requires_grad_(true), w2 = weight.clone().requires_grad_(true);
      head_loss(h2, w2, targets, 1, at_once).backward();
      EXPECT_TRUE(at::equal(train_hidden ? h.grad() : w.grad(), train_hidden ? h2.grad() : w2.grad()));
    }
  EXPECT_FALSE(head_loss(hidden, weight, targets, 1).requires_grad());
}

// Adds up what libtorch allocates and frees on the thread that it is installed on.
class AllocationPeak : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

TEST_P(HeadLoss, TheLogitsNeverExistAtOnce) {
  at::set_num_threads(1);
  const std::int64_t rows = 2560, vocab = 32768, n = 8;
  ASSERT_GT(rows, 8 * head_rows_at_once(vocab));
  at::Tensor hidden = numbers({rows, n}, type).requires_grad_(true),
             weight = numbers({vocab, n}, type).requires_grad_(true), targets = make_targets(rows, vocab);
  auto counter = std::make_shared<AllocationPeak>();
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    head_loss(hidden, weight, targets, 1).backward();
  }
  ASSERT_TRUE(weight.grad().defined());
  const std::int64_t piece = head_rows_at_once(vocab) * vocab * hidden.element_size(), all = rows * vocab * 4;
  EXPECT_GE(counter->peak(), piece) << "nothing was counted";
  EXPECT_LT(counter->peak(), all / 3);
  RecordProperty("peak_share", fmt::format("{:.3g}", static_cast<double>(counter->peak()) / static_cast<double>(all)));
}

}  // namespace
}  // namespace yoke
