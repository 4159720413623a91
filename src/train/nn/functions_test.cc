#include "train/nn/functions.h"

#include "train/nn/test_functions.h"

namespace yoke {
namespace {

using Tensors = std::vector<at::Tensor>;

// One row, rows that no vector width divides, widths from one number on.
const std::vector<std::vector<std::int64_t>> shapes = {{1, 1}, {1, 33}, {3, 7, 2}, {37, 5}, {5, 100}, {900, 129}};

class Functions : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
  const at::ScalarType type = GetParam();
};

INSTANTIATE_TEST_SUITE_P(All, Functions, testing::ValuesIn(all_types),
                         [](const auto& each) { return c10::toString(each.param); });

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * w;
}

at::Tensor plain_layer_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps) {
  at::Tensor centred = x - x.mean(-1, true);
  return centred * (centred.square().mean(-1, true) + eps).rsqrt() * w + b;
}

TEST_P(Functions, RmsNorm) {
  with_threads([&] {
    for (const auto& shape : shapes) {
      SCOPED_TRACE(c10::str(shape));
      // With one number a row the gradient is nothing but what rounding leaves of eps.
      const double eps = shape.back() == 1 ? 0.5 : 1e-5;
      expect_same([&](const Tensors& in) { return rms_norm(in[0], in[1], eps); },
                  [&](const Tensors& in) { return plain_rms_norm(in[0], in[1], eps); },
                  {numbers(shape, type), numbers({shape.back()}, type)}, 1, 1);
      at::Tensor x = numbers(shape, type), w = numbers({shape.back()}, type);
      EXPECT_TRUE(at::equal(rms_norm_value(x, w, eps), rms_norm(x, w, eps)));
    }
  });
}

// Squares of 3e4 are far beyond fp16, the norm is not.
TEST_P(Functions, NormsOfLargeNumbers) {
  expect_same([](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); },
              [](const Tensors& in) { return plain_rms_norm(in[0], in[1], 1e-5); },
              {numbers({4, 65}, type, 8e3), numbers({65}, type)}, 1, 1);
  expect_same([](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); },
              [](const Tensors& in) { return plain_layer_norm(in[0], in[1], in[2], 1e-5); },
              {numbers({4, 65}, type, 8e3), numbers({65}, type), numbers({65}, type)}, 1, 1);
}

TEST_P(Functions, LayerNorm) {
  for (const auto& shape : shapes) {
    if (shape.back() < 5) continue;  // of one number or two nothing is left
    SCOPED_TRACE(c10::str(shape));
    expect_same([&](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); },
                [&](const Tensors& in) { return plain_layer_norm(in[0], in[1], in[2], 1e-5); },
                {numbers(shape, type), numbers({shape.back()}, type), numbers({shape.back()}, type)}, 1, 1);
  }
}

at::Tensor plain_swiglu(const at::Tensor& x) {
  std::int64_t n = x.size(-1) / 2;
  return at::silu(x.narrow(-1, 0, n)) * x.narrow(-1, n, n);
}

TEST_P(Functions, SwiGlu) {
  with_threads([&] {
    for (auto shape : shapes) {
      shape.back() *= 2;
      SCOPED_TRACE(c10::str(shape));
      expect_same([](const Tensors& in) { return swiglu(in[0]); },
                  [](const Tensors& in) { return plain_swiglu(in[0]); }, {numbers(shape, type, 3)}, 1, 1);
      at::Tensor x = numbers(shape, type);
      EXPECT_TRUE(at::equal(swiglu_value(x), swiglu(x)));
    }
  });
}

TEST_P(Functions, Embed) {
  with_threads([&] {
    for (std::int64_t width : {1, 33, 1030}) {
      SCOPED_TRACE(width);
      // Few tokens many times: sums in the storage type would lose most of their digits in 16 bits.
      at::Tensor tokens = at::randint(0, 3, {5, 700}, at::kLong).mul_(4);
      tokens[2][3] = 11;
      auto reference = [](const Tensors& in) { return at::embedding(in[0], in[1]); };
      expect_same([](const Tensors& in) { return embed(in[0], in[1]); }, reference,
                  {numbers({13, width}, type), tokens}, 0, 1);
    }
  });
}

TEST_P(Functions, GradientsAreAddedInPlace) {
  at::Tensor w = numbers({13, 5}, type).requires_grad_(true), tokens = at::tensor({1, 12, 1}, at::kLong);
  at::Tensor before = numbers({13, 5}, type);
  w.mutable_grad() = before.clone();
  const void* place = w.grad().const_data_ptr();
  at::Tensor upstream = numbers({3, 5}, type);
  embed(w, tokens).backward(upstream);
  at::Tensor expected = before.to(at::kDouble).index_add_(0, tokens, upstream.to(at::kDouble));
  EXPECT_LT(relative_error(w.grad(), expected), tolerance(type, 1));
  at::Tensor x = numbers({7, 5}, type), dy = numbers({7, 13}, type);
  linear(x, {w}).backward(dy);
  expected = expected + dy.to(at::kDouble).t().mm(x.to(at::kDouble));
  EXPECT_LT(relative_error(w.grad(), expected), tolerance(type, 2));
  at::Tensor d5 = numbers({7, 5}, type), x13 = numbers({7, 13}, type), bias = numbers({5}, type).requires_grad_(true);
  bias.mutable_grad() = at::zeros_like(bias);
  affine(x13, w, bias).backward(d5);
  expected = expected + x13.to(at::kDouble).t().mm(d5.to(at::kDouble));
  EXPECT_LT(relative_error(w.grad(), expected), tolerance(type, 3));
  EXPECT_LT(relative_error(bias.grad(), d5.to(at::kDouble).sum(0)), tolerance(type, 1));
  EXPECT_EQ(w.grad().const_data_ptr(), place);
}

// Weights one after the other in memory, gradients too, or each on its own.
TEST_P(Functions, Linear) {
  auto reference = [](const Tensors& in) { return in[0].matmul(at::cat({in[1], in[2], in[3]}).t()); };
  auto ours = [](const Tensors& in) { return linear(in[0], {in[1], in[2], in[3]}); };
  for (std::int64_t rows : {1, 3, 70}) {
    SCOPED_TRACE(rows);
    Tensors values = {numbers({2, rows, 33}, type), numbers({5, 33}, type), numbers({1, 33}, type),
                      numbers({70, 33}, type)};
    expect_same(ours, reference, values, 1, 4);
    auto flat_parts = [&](const at::Tensor& flat) {
      return Tensors{flat.narrow(0, 0, 5), flat.narrow(0, 5, 1), flat.narrow(0, 6, 70)};
    };
    Tensors parts = flat_parts(at::cat({values[1], values[2], values[3]}));
    Tensors grads = flat_parts(at::zeros({76, 33}, values[1].options()));
    for (std::size_t i = 0; i < 3; ++i) {
      parts[i] = parts[i].detach().requires_grad_(true);
      parts[i].mutable_grad() = grads[i].variable_data();
    }
    at::Tensor x = values[0].clone().requires_grad_(true), upstream = numbers({2, rows, 76}, type);
    at::Tensor y = linear(x, parts);
    y.backward(upstream);
    at::Tensor wide_x = x.detach().to(at::kDouble).view({-1, 33}), wide_up = upstream.to(at::kDouble).view({-1, 76}),
               whole = at::cat({values[1], values[2], values[3]}).to(at::kDouble);
    EXPECT_LT(relative_error(y.view({-1, 76}), wide_x.mm(whole.t())), tolerance(type, 1));
    EXPECT_LT(relative_error(x.grad().view({-1, 33}), wide_up.mm(whole)), tolerance(type, 1));
    EXPECT_LT(relative_error(at::cat({parts[0].grad(), parts[1].grad(), parts[2].grad()}), wide_up.t().mm(wide_x)),
              tolerance(type, 1));
  }
}

TEST_P(Functions, LinearResidualAndAffine) {
  for (std::int64_t rows : {1, 3, 70}) {
    SCOPED_TRACE(rows);
    expect_same([](const Tensors& in) { return linear_residual(in[0], in[1], in[2]); },
                [](const Tensors& in) { return in[0] + in[1].matmul(in[2].t()); },
                {numbers({rows, 7}, type), numbers({rows, 33}, type), numbers({7, 33}, type)}, 1, 1);
    expect_same([](const Tensors& in) { return affine(in[0], in[1], in[2]); },
                [](const Tensors& in) { return in[0].matmul(in[1]) + in[2]; },
                {numbers({rows, 33}, type), numbers({33, 7}, type), numbers({7}, type)}, 1, 1);
  }
}

// An input that is made again gives the same gradients as one that is kept.
TEST_P(Functions, InputsMadeAgain) {
  at::Tensor x = numbers({6, 33}, type);
  Again again = [x] { return x; };
  Tensors values = {x, numbers({33, 33}, type), numbers({33}, type)};
  expect_same([&](const Tensors& in) { return linear(in[0], {in[1]}, again) + in[2]; },
              [](const Tensors& in) { return in[0].matmul(in[1].t()) + in[2]; }, values, 2, 1);
  expect_same([&](const Tensors& in) { return linear_residual(in[0], in[0], in[1], again) + in[2]; },
              [](const Tensors& in) { return in[0] + in[0].matmul(in[1].t()) + in[2]; }, values, 2, 2);
  expect_same([&](const Tensors& in) { return affine(in[0], in[1], in[2], again); },
              [](const Tensors& in) { return in[0].matmul(in[1]) + in[2]; }, values, 1, 1);
}

// What is frozen gets no gradient, and the rest gets the same one.
TEST_P(Functions, FrozenWeights) {
  at::Tensor x = numbers({6, 33}, type).requires_grad_(true), w = numbers({7, 33}, type), v = numbers({4, 33}, type);
  at::Tensor upstream = numbers({6, 11}, type);
  auto gradients = [&](bool train_x, bool train_w, bool train_v) {
    Tensors leaves = {x.detach().clone().requires_grad_(train_x), w.clone().requires_grad_(train_w),
                      v.clone().requires_grad_(train_v)};
    linear(leaves[0], {leaves[1], leaves[2]}).backward(upstream);
    return Tensors{leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  Tensors all = gradients(true, true, true);
  for (int mask = 1; mask < 8; ++mask) {
    Tensors some = gradients((mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0);
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(some[i].defined(), ((mask >> i) & 1) != 0) << mask;
      if (some[i].defined()) {
        EXPECT_TRUE(at::equal(some[i], all[i])) << mask;
      }
    }
  }
}

Rotary make_rotary(std::int64_t positions, std::int64_t dim, at::ScalarType type) {
  at::Tensor angle = at::randn({positions, dim / 2}, at::kDouble) * 3;
  at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  return {angle.cos().to(wide), angle.sin().to(wide)};
}

at::Tensor plain_rotate(const at::Tensor& x, const Rotary& rotary) {
  std::int64_t half = x.size(-1) / 2;
  at::Tensor cos = rotary.cos.to(at::kDouble).narrow(0, 0, x.size(2)),
             sin = rotary.sin.to(at::kDouble).narrow(0, 0, x.size(2));
  at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor plain_split(const at::Tensor& qkv, HeadShape s, const Rotary* rotary) {
  at::Tensor heads = qkv.view({qkv.size(0), qkv.size(1), s.heads + 2 * s.kv_heads, s.dim}).transpose(1, 2);
  at::Tensor q = heads.narrow(1, 0, s.heads), k = heads.narrow(1, s.heads, s.kv_heads),
             v = heads.narrow(1, s.heads + s.kv_heads, s.kv_heads);
  if (rotary != nullptr) q = plain_rotate(q, *rotary), k = plain_rotate(k, *rotary);
  std::int64_t share = s.heads / s.kv_heads;
  return at::stack({q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)});
}

TEST_P(Functions, SplitHeads) {
  with_threads([&] {
    for (HeadShape s : {HeadShape{1, 1, 2}, {4, 2, 6}, {6, 2, 10}, {3, 3, 7}, {2, 1, 64}, {2, 2, 130}})
      for (std::int64_t sequence : {1, 7, 33})
        for (bool rotates : {false, true}) {
          if (rotates && s.dim % 2 != 0) continue;
          SCOPED_TRACE(testing::Message() << s.heads << " heads of " << s.dim << ", sequence " << sequence);
          Rotary table = make_rotary(sequence + 3, s.dim, type);
          const Rotary* rotary = rotates ? &table : nullptr;
          expect_same(
              [&](const Tensors& in) {
                auto [q, k, v] = split_heads(in[0], s, rotary);
                return at::stack({q, k, v});
              },
              [&](const Tensors& in) { return plain_split(in[0], s, rotary); },
              {numbers({2, sequence, (s.heads + 2 * s.kv_heads) * s.dim}, type)}, rotates ? 1 : 0, 1);
        }
  });
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  std::int64_t n = q.size(2);
  at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor later = at::ones({n, n}, at::kBool).triu(1);
  at::Tensor out = scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(v);
  return out.transpose(1, 2).reshape({q.size(0), n, -1});
}

TEST_P(Functions, Attention) {
  with_threads([&] {
    for (std::int64_t dim : {1, 6, 7, 64})
      for (std::int64_t sequence : {2, 7, 100}) {
        SCOPED_TRACE(testing::Message() << "dim " << dim << " sequence " << sequence);
        expect_same([](const Tensors& in) { return attention(in[0], in[1], in[2]); },
                    [](const Tensors& in) { return plain_attention(in[0], in[1], in[2]); },
                    {numbers({2, 3, sequence, dim}, type), numbers({2, 3, sequence, dim}, type),
                     numbers({2, 3, sequence, dim}, type)},
                    2, 4);
      }
  });
}

// Scores far beyond fp16: what attends to what is clear, and the result is one of the values.
TEST_P(Functions, AttentionOfLargeScores) {
  at::Tensor q = numbers({1, 2, 9, 64}, type, 200), k = numbers({1, 2, 9, 64}, type, 200),
             v = numbers({1, 2, 9, 64}, type);
  at::Tensor expected = plain_attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble));
  EXPECT_LT(relative_error(attention(q, k, v), expected), tolerance(type, 2));
}

TEST_P(Functions, Recompute) {
  auto f = [](const at::Tensor& x, const at::Tensor& w) { return linear(rms_norm(x, w, 1e-5), {x.detach()}); };
  for (bool train_x : {true, false})
    for (bool train_w : {true, false}) {
      at::Tensor x = numbers({6, 33}, type), w = numbers({33}, type), upstream = numbers({6, 6}, type);
      Tensors kept = {x.clone().requires_grad_(train_x), w.clone().requires_grad_(train_w)},
              again = {x.clone().requires_grad_(train_x), w.clone().requires_grad_(train_w)};
      at::Tensor y = f(kept[0], kept[1]);
      at::Tensor z = recompute([&](const at::Tensor& in) { return f(in, again[1]); }, again[0], {again[1]});
      EXPECT_TRUE(at::equal(y, z));
      ASSERT_EQ(z.requires_grad(), train_x || train_w);
      if (!z.requires_grad()) continue;
      y.backward(upstream);
      z.backward(upstream);
      for (std::size_t i = 0; i < 2; ++i) {
        ASSERT_EQ(again[i].grad().defined(), kept[i].requires_grad());
        if (kept[i].requires_grad()) {
          EXPECT_TRUE(at::equal(again[i].grad(), kept[i].grad())) << i;
        }
      }
    }
}

}  // namespace
}  // namespace yoke
