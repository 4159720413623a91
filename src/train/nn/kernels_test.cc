#include "train/nn/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "train/nn/kernels_isa.h"

namespace yoke {
namespace {

// The tables that this processor can run.
std::vector<std::pair<std::string, KernelTables>> tables() {
  std::vector<std::pair<std::string, KernelTables>> all = {{"base", kernels_base()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.emplace_back("avx2", kernels_avx2());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    all.emplace_back("avx512", kernels_avx512());
#endif
  return all;
}

template <class T>
const Kernels<T>& of(const KernelTables& t) {
  if constexpr (std::is_same_v<T, float>) return *t.f32;
  if constexpr (std::is_same_v<T, double>) return *t.f64;
  if constexpr (std::is_same_v<T, c10::BFloat16>) return *t.bf16;
  if constexpr (std::is_same_v<T, c10::Half>) return *t.f16;
}

template <class T>
class Kernel : public testing::Test {};
using Types = testing::Types<float, double, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Kernel, Types);

template <class T>
std::vector<T> random_numbers(std::int64_t n, double spread = 1) {
  static std::mt19937 random(1);
  std::normal_distribution<double> normal(0, spread);
  std::vector<T> all(static_cast<std::size_t>(n));
  for (T& x : all) x = static_cast<T>(static_cast<Arithmetic<T>>(normal(random)));
  return all;
}

// Relative to the largest, or to 1, the size of the inputs; two kernels may sum in another order and so round some
// numbers to the next one.
template <class T>
void expect_near(const std::vector<T>& ours, const std::vector<T>& base) {
  const double one = std::is_same_v<T, double> ? 1e-13
                     : sizeof(T) == 4          ? 2e-6
                                               : 2 * static_cast<double>(std::numeric_limits<T>::epsilon());
  double most = 1;
  for (T x : base) most = std::max(most, std::abs(static_cast<double>(x)));
  for (std::size_t i = 0; i < base.size(); ++i)
    ASSERT_NEAR(static_cast<double>(ours[i]), static_cast<double>(base[i]), one * most) << i;
}

// Every instruction set computes what the plain code does, which functions_test.cc holds against libtorch for one set.
TYPED_TEST(Kernel, InstructionSetsAgree) {
  using T = TypeParam;
  using A = Arithmetic<T>;
  for (auto [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {35, 33}, {2, 600}}) {
    auto size = static_cast<std::size_t>(rows * n);
    const double eps = n == 1 ? 0.5 : 1e-5;  // the gradient of a norm of one number is what eps leaves
    auto x = random_numbers<T>(rows * n), dy = random_numbers<T>(rows * n), w = random_numbers<T>(n),
         gate_up = random_numbers<T>(2 * rows * n, 4);
    std::vector<std::int64_t> targets(static_cast<std::size_t>(rows), n - 1), which = {rows - 1, 0, rows / 2};
    if (rows > 1) targets[1] = -100;
    struct Results {
      std::vector<T> normed, dnormed, layered, dlayered, product, dproduct, logits, rotated, rows;
      std::vector<double> dw, dw_db, loss;
    } base;
    for (const auto& [isa, table] : tables()) {
      SCOPED_TRACE(testing::Message() << isa << " rows " << rows << " n " << n);
      const Kernels<T>& k = of<T>(table);
      Results r;
      std::vector<A> rstd(static_cast<std::size_t>(rows)), mean(rstd.size());
      r.normed.resize(size), r.layered.resize(size), r.dlayered.resize(size),
          r.dw_db.resize(static_cast<std::size_t>(2 * n)), r.dnormed.resize(size), r.product.resize(size),
          r.dproduct.resize(2 * size), r.rotated.resize(size), r.dw.resize(static_cast<std::size_t>(n));
      k.rms_norm(x.data(), w.data(), r.normed.data(), rstd.data(), rows, n, eps);
      k.rms_norm_backward(dy.data(), x.data(), w.data(), rstd.data(), r.dnormed.data(), r.dw.data(), rows, n);
      k.layer_norm(x.data(), w.data(), w.data(), r.layered.data(), mean.data(), rstd.data(), rows, n, eps);
      k.layer_norm_backward(dy.data(), x.data(), w.data(), mean.data(), rstd.data(), r.dlayered.data(), r.dw_db.data(),
                            rows, n);
      k.swiglu(gate_up.data(), r.product.data(), rows, n);
      k.swiglu_backward(dy.data(), gate_up.data(), r.dproduct.data(), rows, n);
      r.rows = w;
      k.add_rows(x.data(), which.data(), 3, r.rows.data(), n);
      r.logits = x;
      r.loss = {k.cross_entropy(r.logits.data(), targets.data(), rows, n, 0.5, true)};
      if (n <= 512) {
        std::vector<A> cos(size, A(0.6)), sin(size, A(0.8));
        std::int64_t dim = n - n % 2;
        k.rotate_sum(x.data(), n, 0, 1, r.rotated.data(), n, dim > 0 ? cos.data() : nullptr, sin.data(), A(-1), rows,
                     dim > 0 ? dim : n);
      }
      if (isa == "base") base = r;
      expect_near(r.normed, base.normed);
      expect_near(r.dnormed, base.dnormed);
      for (std::size_t i = 0; i < r.dw.size(); ++i) EXPECT_NEAR(r.dw[i], base.dw[i], 1e-5 * static_cast<double>(rows));
      expect_near(r.layered, base.layered);
      expect_near(r.dlayered, base.dlayered);
      for (std::size_t i = 0; i < r.dw_db.size(); ++i)
        EXPECT_NEAR(r.dw_db[i], base.dw_db[i], 1e-5 * static_cast<double>(rows));
      expect_near(r.product, base.product);
      expect_near(r.dproduct, base.dproduct);
      expect_near(r.rows, base.rows);
      expect_near(r.logits, base.logits);
      EXPECT_NEAR(r.loss[0], base.loss[0], 1e-5 * std::abs(base.loss[0]) + 1e-7);
      expect_near(r.rotated, base.rotated);
    }
  }
}

// All fp16 numbers, through load and store; c10's conversion is the reference.
TEST(KernelHalf, EveryNumberIsReadAndWritten) {
  std::vector<c10::Half> all, out(65536);
  for (unsigned bits = 0; bits < 65536; ++bits)
    all.emplace_back(static_cast<std::uint16_t>(bits), c10::Half::from_bits());
  for (const auto& [isa, table] : tables()) {
    SCOPED_TRACE(isa);
    table.f16->rotate_sum(all.data(), 512, 0, 1, out.data(), 512, nullptr, nullptr, 1, 128, 512);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(static_cast<float>(all[i])))
        ASSERT_TRUE(std::isnan(static_cast<float>(out[i]))) << i;
      else
        ASSERT_EQ(out[i].x, all[i].x) << i;
    }
  }
}

// Sums of two fp16 numbers need more digits than fp16 has: rounding, overflow, subnormal results, infinities.
TEST(KernelHalf, SumsAreRoundedToTheNearest) {
  std::mt19937 random(3);
  std::vector<c10::Half> pairs, out(512);
  for (int block = 0; block < 1000; ++block) {
    pairs.clear();
    for (int i = 0; i < 1024; ++i) {
      auto bits = static_cast<std::uint16_t>(random());
      if (i >= 512 && block % 2 == 1)  // near the first one, so that ties and cancellation are frequent
        bits = static_cast<std::uint16_t>(pairs[static_cast<std::size_t>(i - 512)].x ^ (random() & 0x87ff));
      pairs.emplace_back(bits, c10::Half::from_bits());
    }
    for (const auto& [isa, table] : tables()) {
      table.f16->rotate_sum(pairs.data(), 0, 512, 2, out.data(), 0, nullptr, nullptr, 1, 1, 512);
      for (std::size_t i = 0; i < 512; ++i) {
        const float sum = static_cast<float>(pairs[i]) + static_cast<float>(pairs[i + 512]);
        if (std::isnan(sum))
          ASSERT_TRUE(std::isnan(static_cast<float>(out[i])));
        else
          ASSERT_EQ(out[i].x, c10::Half(sum).x) << isa << " " << sum;
      }
    }
  }
}

// Products need more digits still, and fall below the smallest subnormal number: silu(60) * up is 60 up.
TEST(KernelHalf, ProductsAreRoundedToTheNearest) {
  std::vector<c10::Half> gate_up(2 * 65536), out(65536);
  for (std::size_t i = 0; i < 65536; ++i) {
    gate_up[i] = c10::Half(60.0f);
    gate_up[65536 + i] = c10::Half(static_cast<std::uint16_t>(i), c10::Half::from_bits());
  }
  for (const auto& [isa, table] : tables()) {
    SCOPED_TRACE(isa);
    table.f16->swiglu(gate_up.data(), out.data(), 1, 65536);
    for (std::size_t i = 0; i < 65536; ++i) {
      const float expected = 60.0f * static_cast<float>(gate_up[65536 + i]);
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(static_cast<float>(out[i])));
      else
        ASSERT_EQ(out[i].x, c10::Half(expected).x) << expected;
    }
  }
}

}  // namespace
}  // namespace yoke
