#include "train/nn/functions.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <mutex>

#include "core/base/result.h"
#include "core/parallel/head_rows.h"
#include "train/nn/kernels.h"

namespace yoke {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a node keeps for its backward pass besides autograd's own saved variables: those check versions and cannot hold
// closures. Released by the node's own backward, so that activations go as early as they can.
template <class T>
struct Kept : torch::CustomClassHolder {
  T value;
};

template <class T>
void keep(AutogradContext* ctx, T value) {
  auto kept = c10::make_intrusive<Kept<T>>();
  kept->value = std::move(value);
  ctx->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
}

template <class T>
T take_kept(AutogradContext* ctx) {
  auto capsule = ctx->saved_data.at("kept").toCapsule();
  return std::move(static_cast<Kept<T>*>(capsule.get())->value);
}

template <class F>
void dispatch(const at::Tensor& t, F f) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    default:
      YOKE_CHECK(false, "no kernel for {}", c10::toString(t.scalar_type()));
  }
}

at::ScalarType arithmetic_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// f(first, last) over ranges of rows, on the threads of this rank.
template <class F>
void over_rows(std::int64_t rows, std::int64_t work_per_row, const F& f) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, work_per_row)), f);
}

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// ---- weight gradients
// -------------------------------------------------------------------------------------------------------

bool one_after_the_other(const std::vector<at::Tensor>& parts) {
  const char* next = nullptr;
  for (const at::Tensor& part : parts) {
    if (!part.defined() || !part.is_contiguous()) return false;
    const char* begin = static_cast<const char*>(part.const_data_ptr());
    if (next != nullptr && (begin != next || !part.storage().is_alias_of(parts[0].storage()))) return false;
    next = begin + part.nbytes();
  }
  return true;
}

// Matrices of equal width that lie one after the other, as one matrix.
at::Tensor stacked(const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1) return parts[0];
  std::int64_t rows = 0;
  for (const at::Tensor& part : parts) rows += part.size(0);
  return parts[0].as_strided({rows, parts[0].size(1)}, {parts[0].size(1), 1});
}

// Whether the gradient can be added in place where autograd would accumulate it.
bool accumulates_in_place(const at::Tensor& weight) {
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.scalar_type() == weight.scalar_type() && grad.is_contiguous();
}

// The gradients of weights [out_i, in] from dy [rows, sum out] and x [rows, in]: added in place where possible (then
// undefined).
variable_list weight_gradients(const std::vector<at::Tensor>& weights, const at::Tensor& dy, const at::Tensor& x) {
  bool all = true, in_place = true;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& w : weights) {
    all = all && w.requires_grad();
    in_place = in_place && accumulates_in_place(w);
    grads.push_back(w.grad());
  }
  variable_list result(weights.size());
  if (all && in_place && one_after_the_other(grads)) {
    at::Tensor grad = stacked(grads);
    at::addmm_out(grad, grad, dy.t(), x);
    return result;
  }
  std::int64_t column = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    at::Tensor part = dy.narrow(1, column, weights[i].size(0));
    column += weights[i].size(0);
    if (!weights[i].requires_grad()) continue;
    if (accumulates_in_place(weights[i])) {
      at::Tensor grad = weights[i].grad();
      at::addmm_out(grad, grad, part.t(), x);
    } else {
      result[i] = part.t().mm(x);
    }
  }
  return result;
}

// A vector's gradient from sums in fp32 or fp64.
at::Tensor vector_gradient(const at::Tensor& weight, const at::Tensor& sums) {
  if (!weight.requires_grad()) return {};
  if (accumulates_in_place(weight)) {
    at::Tensor grad = weight.grad();
    grad.add_(sums.to(grad.scalar_type()));
    return {};
  }
  return sums.to(weight.scalar_type());
}

// ---- RMSNorm
// ----------------------------------------------------------------------------------------------------------------

at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor* rstd) {
  std::int64_t n = x.size(-1), rows = x.numel() / n;
  if (!x.is_cpu()) {
    at::Tensor wide = x.to(arithmetic_type(x));
    at::Tensor scale = wide.square().mean(-1, true).add_(eps).rsqrt_();
    if (rstd != nullptr) *rstd = scale;
    return wide.mul_(scale).mul_(weight).to(x.scalar_type());
  }
  at::Tensor y = at::empty_like(x);
  at::Tensor scale = at::empty({rows}, x.options().dtype(arithmetic_type(x)));
  dispatch(x, [&]<class T>(T) {
    const T *xp = x.const_data_ptr<T>(), *wp = weight.const_data_ptr<T>();
    T* yp = y.mutable_data_ptr<T>();
    auto* sp = scale.mutable_data_ptr<Arithmetic<T>>();
    over_rows(rows, n, [&](std::int64_t a, std::int64_t b) {
      kernels<T>().rms_norm(xp + a * n, wp, yp + a * n, sp + a, b - a, n, eps);
    });
  });
  if (rstd != nullptr) *rstd = scale;
  return y;
}

struct RmsNorm : Function<RmsNorm> {
  struct State {
    at::Tensor x, weight, rstd;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight, double eps) {
    at::Tensor x = x_in.contiguous(), rstd;
    at::Tensor y = rms_norm_forward(x, weight, eps, &rstd);
    keep(ctx, State{x.detach(), weight, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, weight, rstd] = take_kept<State>(ctx);
    at::Tensor dy = grads[0].contiguous();
    std::int64_t n = x.size(-1), rows = x.numel() / n;
    if (!x.is_cpu()) {
      at::Tensor wide = x.to(rstd.scalar_type()), g = dy.to(rstd.scalar_type());
      at::Tensor normed = wide * rstd, pulled = g * weight;
      at::Tensor dx = rstd * (pulled - normed * (pulled * normed).mean(-1, true));
      return {dx.to(x.scalar_type()), vector_gradient(weight, (g * normed).reshape({-1, n}).sum(0)), {}};
    }
    at::Tensor dx = at::empty_like(x);
    at::Tensor dw = at::zeros({n}, at::kDouble);
    std::mutex mutex;
    dispatch(x, [&]<class T>(T) {
      const T *dyp = dy.const_data_ptr<T>(), *xp = x.const_data_ptr<T>(), *wp = weight.const_data_ptr<T>();
      const auto* sp = rstd.const_data_ptr<Arithmetic<T>>();
      T* dxp = dx.mutable_data_ptr<T>();
      auto* dwp = dw.mutable_data_ptr<double>();
      if (at::get_num_threads() == 1) {
        kernels<T>().rms_norm_backward(dyp, xp, wp, sp, dxp, dwp, rows, n);
        return;
      }
      // Equal pieces for each thread, added up in their order, so that the sums do not depend on timing.
      std::int64_t pieces = std::min<std::int64_t>(at::get_num_threads(), rows), each = (rows + pieces - 1) / pieces;
      at::Tensor partial = at::zeros({pieces, n}, at::kDouble);
      auto* pp = partial.mutable_data_ptr<double>();
      at::parallel_for(0, pieces, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t p = first; p < last; ++p) {
          std::int64_t a = p * each, b = std::min(rows, a + each);
          if (a < b)
            kernels<T>().rms_norm_backward(dyp + a * n, xp + a * n, wp, sp + a, dxp + a * n, pp + p * n, b - a, n);
        }
      });
      dw = partial.sum(0);
    });
    return {dx, vector_gradient(weight, dw), {}};
  }
};

// ---- linear
// -----------------------------------------------------------------------------------------------------------------

struct Linear : Function<Linear> {
  struct State {
    at::Tensor x;
    Again again;
    std::vector<at::Tensor> weights;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weight_list, const Again& again) {
    std::vector<at::Tensor> weights = weight_list.vec();
    at::Tensor rows = rows_of(x);
    std::int64_t out = 0;
    for (const at::Tensor& w : weights) out += w.size(0);
    at::Tensor y;
    if (one_after_the_other(weights)) {
      y = rows.mm(stacked(weights).t());
    } else {
      y = at::empty({rows.size(0), out}, x.options());
      std::int64_t column = 0;
      for (const at::Tensor& w : weights) {
        y.narrow(1, column, w.size(0)).copy_(rows.mm(w.t()));
        column += w.size(0);
      }
    }
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = out;
    keep(ctx, State{again ? at::Tensor() : rows.detach(), again, std::move(weights)});
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weights] = take_kept<State>(ctx);
    std::vector<std::int64_t> sizes = grads[0].sizes().vec();
    sizes.back() = weights[0].size(1);
    at::Tensor dy = rows_of(grads[0]);
    at::Tensor dx;
    if (one_after_the_other(weights)) {
      dx = dy.mm(stacked(weights));
    } else {
      std::int64_t column = 0;
      for (const at::Tensor& w : weights) {
        at::Tensor part = dy.narrow(1, column, w.size(0)).mm(w);
        dx = dx.defined() ? dx.add_(part) : part;
        column += w.size(0);
      }
    }
    variable_list result{dx.view(sizes)};
    if (again) x = rows_of(again());
    for (at::Tensor& g : weight_gradients(weights, dy, x)) result.push_back(std::move(g));
    result.emplace_back();
    return result;
  }
};

struct LinearResidual : Function<LinearResidual> {
  struct State {
    at::Tensor x;
    Again again;
    at::Tensor weight;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& residual, const at::Tensor& x,
                            const at::Tensor& weight, const Again& again) {
    at::Tensor rows = rows_of(x);
    at::Tensor y = at::addmm(rows_of(residual), rows, weight.t());
    keep(ctx, State{again ? at::Tensor() : rows.detach(), again, weight});
    return y.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weight] = take_kept<State>(ctx);
    std::vector<std::int64_t> sizes = grads[0].sizes().vec();
    sizes.back() = weight.size(1);
    at::Tensor dy = rows_of(grads[0]);
    at::Tensor dx = dy.mm(weight).view(sizes);
    if (again) x = rows_of(again());
    return {grads[0], dx, weight_gradients({weight}, dy, x)[0], {}};
  }
};

// ---- affine (GPT-2)
// ---------------------------------------------------------------------------------------------------------

struct Affine : Function<Affine> {
  struct State {
    at::Tensor x;
    Again again;
    at::Tensor weight, bias;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Again& again) {
    at::Tensor rows = rows_of(x);
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(1);
    keep(ctx, State{again ? at::Tensor() : rows.detach(), again, weight, bias});
    return at::addmm(bias, rows, weight).view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weight, bias] = take_kept<State>(ctx);
    std::vector<std::int64_t> sizes = grads[0].sizes().vec();
    sizes.back() = weight.size(0);
    at::Tensor dy = rows_of(grads[0]), dw;
    at::Tensor dx = dy.mm(weight.t()).view(sizes);
    if (again) x = rows_of(again());
    if (weight.requires_grad()) {
      if (accumulates_in_place(weight)) {
        at::Tensor grad = weight.grad();
        at::addmm_out(grad, grad, x.t(), dy);
      } else {
        dw = x.t().mm(dy);
      }
    }
    return {dx, dw, vector_gradient(bias, dy.sum(0, false, arithmetic_type(dy))), {}};
  }
};

// ---- SwiGLU
// -----------------------------------------------------------------------------------------------------------------

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    at::Tensor x = gate_up.contiguous();
    keep(ctx, x.detach());
    return swiglu_value(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto x = take_kept<at::Tensor>(ctx);
    at::Tensor dy = grads[0].contiguous();
    std::int64_t n = x.size(-1) / 2, rows = dy.numel() / n;
    if (!x.is_cpu()) {
      at::Tensor wide = x.to(arithmetic_type(x)), g = dy.to(arithmetic_type(x));
      at::Tensor gate = wide.narrow(-1, 0, n), up = wide.narrow(-1, n, n), sigmoid = gate.sigmoid();
      at::Tensor dgate = g * up * sigmoid * (1 + gate * (1 - sigmoid));
      return {at::cat({dgate, g * gate * sigmoid}, -1).to(x.scalar_type())};
    }
    at::Tensor dx = at::empty_like(x);
    dispatch(x, [&]<class T>(T) {
      const T *dyp = dy.const_data_ptr<T>(), *xp = x.const_data_ptr<T>();
      T* dxp = dx.mutable_data_ptr<T>();
      over_rows(rows, 4 * n, [&](std::int64_t a, std::int64_t b) {
        kernels<T>().swiglu_backward(dyp + a * n, xp + a * 2 * n, dxp + a * 2 * n, b - a, n);
      });
    });
    return {dx};
  }
};

// ---- heads and attention
// ----------------------------------------------------------------------------------------------------

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

// ---- loss
// -------------------------------------------------------------------------------------------------------------------

// Turns logits into scale * gradient in place (if asked for) and returns the sum of the losses as an fp64 scalar.
at::Tensor cross_entropy(at::Tensor& logits, const at::Tensor& targets, double scale, bool gradient) {
  if (!logits.is_cpu()) {
    at::Tensor wide = logits.to(arithmetic_type(logits));
    at::Tensor log_probability = at::log_softmax(wide, -1);
    at::Tensor counted = targets.ge(0), index = targets.clamp_min(0).unsqueeze(1);
    at::Tensor loss = -(log_probability.gather(1, index).squeeze(1) * counted).sum(at::kDouble);
    if (gradient) {
      at::Tensor g = log_probability.exp_();
      g.scatter_add_(1, index, at::full_like(index, -1, g.options()));
      logits.copy_(g.mul_(counted.unsqueeze(1)).mul_(scale));
    }
    return loss;
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  std::int64_t rows = logits.size(0), n = logits.size(1);
  dispatch(logits, [&]<class T>(T) {
    T* lp = logits.mutable_data_ptr<T>();
    const auto* tp = targets.const_data_ptr<std::int64_t>();
    std::int64_t pieces = std::min<std::int64_t>(at::get_num_threads(), std::max<std::int64_t>(rows, 1)),
                 each = (rows + pieces - 1) / pieces;
    std::vector<double> sums(static_cast<std::size_t>(pieces));
    at::parallel_for(0, pieces, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        std::int64_t a = p * each, b = std::min(rows, a + each);
        if (a < b)
          sums[static_cast<std::size_t>(p)] = kernels<T>().cross_entropy(lp + a * n, tp + a, b - a, n, scale, gradient);
      }
    });
    for (double sum : sums) *loss.mutable_data_ptr<double>() += sum;
  });
  return loss;
}

struct HeadLoss : Function<HeadLoss> {
  struct State {
    at::Tensor hidden, weight, dlogits;  // when all rows are made at once
    at::Tensor dhidden, dweight;         // when they are made piece by piece, gradients and all
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_in, const at::Tensor& weight,
                            const at::Tensor& targets, double scale, bool gradient) {
    at::Tensor hidden = hidden_in.contiguous().detach();
    std::int64_t rows = hidden.size(0), vocab = weight.size(0);
    std::int64_t each = head_rows_at_once(vocab);
    State state;
    at::Tensor loss;
    if (rows <= each) {
      at::Tensor logits = hidden.mm(weight.t());
      loss = cross_entropy(logits, targets, scale, gradient);
      if (gradient) state = {hidden, weight, logits, {}, {}};
    } else {
      loss = at::zeros({}, hidden.options().dtype(at::kDouble));
      if (gradient) state = {{}, weight, {}, at::empty_like(hidden), at::zeros_like(weight)};
      for (std::int64_t first = 0; first < rows; first += each) {
        std::int64_t n = std::min(each, rows - first);
        at::Tensor part = hidden.narrow(0, first, n);
        at::Tensor logits = part.mm(weight.t());
        loss.add_(cross_entropy(logits, targets.narrow(0, first, n), scale, gradient));
        if (!gradient) continue;
        at::Tensor dpart = state.dhidden.narrow(0, first, n);
        at::mm_out(dpart, logits, weight);
        state.dweight.addmm_(logits.t(), part);
      }
    }
    keep(ctx, std::move(state));
    return loss.mul_(scale);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    State s = take_kept<State>(ctx);
    // The gradients were made for an upstream gradient of 1, which is what backward() on the loss gives.
    bool one = grads[0].is_cpu() && grads[0].item<double>() == 1;
    at::Tensor upstream = grads[0].to(s.weight.scalar_type());
    if (s.dlogits.defined()) {
      if (!one) s.dlogits.mul_(upstream);
      return {s.dlogits.mm(s.weight), weight_gradients({s.weight}, s.dlogits, s.hidden)[0], {}, {}, {}};
    }
    if (!one) s.dhidden.mul_(upstream), s.dweight.mul_(upstream);
    return {s.dhidden, s.weight.requires_grad() ? s.dweight : at::Tensor(), {}, {}, {}};
  }
};

// ---- recomputation
// ----------------------------------------------------------------------------------------------------------

struct Recomputed : Function<Recomputed> {
  struct State {
    std::function<at::Tensor(const at::Tensor&)> f;
    at::Tensor x;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& f) {
    keep(ctx, State{f, x.detach()});
    return f(x.detach());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    State state = take_kept<State>(ctx);
    at::Tensor x = state.x.detach().requires_grad_(true), y;
    {
      at::AutoGradMode enable(true);
      y = state.f(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor rms_norm_value(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::NoGradGuard no_grad;
  return rms_norm_forward(x.contiguous(), weight, eps, nullptr);
}

at::Tensor linear(const at::Tensor& x, std::vector<at::Tensor> weights, Again again) {
  return Linear::apply(x, at::TensorList(weights), again);
}

at::Tensor linear_residual(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, Again again) {
  return LinearResidual::apply(residual, x, weight, again);
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Again again) {
  return Affine::apply(x, weight, bias, again);
}

at::Tensor swiglu(const at::Tensor& gate_up) { return SwiGlu::apply(gate_up); }

at::Tensor swiglu_value(const at::Tensor& gate_up) {
  at::NoGradGuard no_grad;
  at::Tensor x = gate_up.contiguous();
  std::int64_t n = x.size(-1) / 2, rows = x.numel() / (2 * n);
  if (!x.is_cpu()) return at::silu(x.narrow(-1, 0, n)).mul_(x.narrow(-1, n, n));
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = n;
  at::Tensor y = at::empty(sizes, x.options());
  dispatch(x, [&]<class T>(T) {
    const T* xp = x.const_data_ptr<T>();
    T* yp = y.mutable_data_ptr<T>();
    over_rows(rows, 4 * n,
              [&](std::int64_t a, std::int64_t b) { kernels<T>().swiglu(xp + a * 2 * n, yp + a * n, b - a, n); });
  });
  return y;
}

std::array<at::Tensor, 3> split_heads(const at::Tensor& qkv, HeadShape shape, const Rotary* rotary) {
  variable_list out = SplitHeads::apply(qkv, shape, rotary);
  return {out[0], out[1], out[2]};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  at::Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  return out.transpose(1, 2).reshape({q.size(0), q.size(2), q.size(1) * q.size(3)});
}

at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale) {
  bool gradient = at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  return HeadLoss::apply(hidden, weight, targets, scale, gradient);
}

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return f(x);
  return Recomputed::apply(x, f);
}

}  // namespace yoke
