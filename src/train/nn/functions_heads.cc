#include "train/nn/functions.h"

#include <ATen/ATen.h>

#include "train/nn/functions_node.h"

namespace yoke {
namespace {

// Rotates, on a CPU, `heads` heads of every sequence from one place to another; in each, head h is the sum of `count`
// input heads.
struct HeadsAt {
  const at::Tensor& tensor;         // the storage
  std::int64_t offset;              // of the first element, from the tensor's own
  std::int64_t batch, head, token;  // strides
};

template <class T>
void rotate_heads(HeadsAt from, std::int64_t count, HeadsAt to, std::int64_t batch, std::int64_t heads,
                  std::int64_t sequence, std::int64_t dim, const Rotary* rotary, double sign) {
  using A = Arithmetic<T>;
  const T* in = from.tensor.const_data_ptr<T>() + from.offset;
  T* out = to.tensor.mutable_data_ptr<T>() + to.offset;
  const A* cos = rotary != nullptr ? rotary->cos.const_data_ptr<A>() : nullptr;
  const A* sin = rotary != nullptr ? rotary->sin.const_data_ptr<A>() : nullptr;
  over_rows(batch * heads, sequence * dim, [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = a; i < b; ++i) {
      std::int64_t row = i / heads, h = i % heads;
      kernels<T>().rotate_sum(in + row * from.batch + h * count * from.head, from.token, from.head, count,
                              out + row * to.batch + h * to.head, to.token, cos, sin, static_cast<A>(sign), sequence,
                              dim);
    }
  });
}

at::Tensor rotated(const at::Tensor& x, const Rotary& rotary,
                   double sign) {  // [batch, heads, sequence, dim], any device
  std::int64_t half = x.size(-1) / 2;
  at::Tensor wide = x.to(rotary.cos.scalar_type());
  at::Tensor a = wide.narrow(-1, 0, half), b = wide.narrow(-1, half, half);
  at::Tensor cos = rotary.cos.narrow(0, 0, x.size(2)), sin = rotary.sin.narrow(0, 0, x.size(2)) * sign;
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

struct SplitHeads : Function<SplitHeads> {
  struct State {
    HeadShape shape;
    std::optional<Rotary> rotary;
  };

  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv_in, HeadShape s, const Rotary* rotary) {
    at::Tensor qkv = qkv_in.contiguous();
    std::int64_t batch = qkv.size(0), sequence = qkv.size(1), width = qkv.size(2), share = s.heads / s.kv_heads;
    keep(ctx, State{s, rotary != nullptr ? std::optional<Rotary>(*rotary) : std::nullopt});
    if (!qkv.is_cpu()) {
      at::Tensor heads = qkv.view({batch, sequence, s.heads + 2 * s.kv_heads, s.dim}).transpose(1, 2);
      at::Tensor q = heads.narrow(1, 0, s.heads), k = heads.narrow(1, s.heads, s.kv_heads),
                 v = heads.narrow(1, s.heads + s.kv_heads, s.kv_heads);
      if (rotary != nullptr) q = rotated(q, *rotary, 1), k = rotated(k, *rotary, 1);
      if (share > 1) k = k.repeat_interleave(share, 1), v = v.repeat_interleave(share, 1);
      return {q.contiguous(), k.contiguous(), v.contiguous()};
    }
    variable_list out;
    for (int i = 0; i < 3; ++i) out.push_back(at::empty({batch, s.heads, sequence, s.dim}, qkv.options()));
    dispatch(qkv, [&]<class T>(T) {
      std::int64_t head = sequence * s.dim;
      rotate_heads<T>({qkv, 0, sequence * width, s.dim, width}, 1, {out[0], 0, s.heads * head, head, s.dim}, batch,
                      s.heads, sequence, s.dim, rotary, 1);
      for (int i = 1; i < 3; ++i)
        for (std::int64_t copy = 0; copy < share; ++copy)
          rotate_heads<T>({qkv, (s.heads + (i - 1) * s.kv_heads) * s.dim, sequence * width, s.dim, width}, 1,
                          {out[i], copy * head, s.heads * head, share * head, s.dim}, batch, s.kv_heads, sequence,
                          s.dim, i == 1 ? rotary : nullptr, 1);
    });
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    State state = take_kept<State>(ctx);
    HeadShape s = state.shape;
    const Rotary* rotary = state.rotary ? &*state.rotary : nullptr;
    std::int64_t batch = grads[0].size(0), sequence = grads[0].size(2), width = (s.heads + 2 * s.kv_heads) * s.dim,
                 share = s.heads / s.kv_heads;
    if (!grads[0].is_cpu()) {
      at::Tensor dq = grads[0], dk = grads[1], dv = grads[2];
      if (share > 1) {
        dk = dk.reshape({batch, s.kv_heads, share, sequence, s.dim}).sum(2);
        dv = dv.reshape({batch, s.kv_heads, share, sequence, s.dim}).sum(2);
      }
      if (rotary != nullptr) dq = rotated(dq, *rotary, -1), dk = rotated(dk, *rotary, -1);
      return {at::cat({dq, dk, dv}, 1).transpose(1, 2).reshape({batch, sequence, width}), {}, {}};
    }
    at::Tensor dqkv = at::empty({batch, sequence, width}, grads[0].options());
    dispatch(dqkv, [&]<class T>(T) {
      for (int i = 0; i < 3; ++i) {
        at::Tensor g = grads[i].stride(3) == 1 ? grads[i] : grads[i].contiguous();
        std::int64_t first = i == 0 ? 0 : s.heads + (i - 1) * s.kv_heads;
        rotate_heads<T>({g, 0, g.stride(0), g.stride(1), g.stride(2)}, i == 0 ? 1 : share,
                        {dqkv, first * s.dim, sequence * width, s.dim, width}, batch, i == 0 ? s.heads : s.kv_heads,
                        sequence, s.dim, i == 2 ? nullptr : rotary, -1);
      }
    });
    return {dqkv, {}, {}};
  }
};

}  // namespace

std::array<at::Tensor, 3> split_heads(const at::Tensor& qkv, HeadShape shape, const Rotary* rotary) {
  variable_list out = SplitHeads::apply(qkv, shape, rotary);
  return {out[0], out[1], out[2]};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  at::Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  return out.transpose(1, 2).reshape({q.size(0), q.size(2), q.size(1) * q.size(3)});
}

}  // namespace yoke
