#include "train/nn/functions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

#include "train/nn/functions_node.h"
#include "train/nn/functions_products.h"
#include "train/nn/weight_access.h"

namespace yoke {
namespace {

// f(first, last, sums) adds to `count` sums for some rows. Equal pieces for each thread, added up in their order, so
// that the sums do not depend on timing.
template <class F>
at::Tensor sums_over_rows(std::int64_t rows, std::int64_t count, const F& f) {
  std::int64_t pieces = std::max<std::int64_t>(1, std::min<std::int64_t>(at::get_num_threads(), rows)),
               each = (rows + pieces - 1) / pieces;
  at::Tensor partial = at::zeros({pieces, count}, at::kDouble);
  auto* sums = partial.mutable_data_ptr<double>();
  at::parallel_for(0, pieces, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      std::int64_t a = p * each, b = std::min(rows, a + each);
      if (a < b) f(a, b, sums + p * count);
    }
  });
  return partial.sum(0);
}

at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor* rstd) {
  std::int64_t n = x.size(-1), rows = x.numel() / n;
  use_weight(weight);
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
    use_weight(weight);
    if (!x.is_cpu()) {
      at::Tensor wide = x.to(rstd.scalar_type()), g = dy.to(rstd.scalar_type());
      at::Tensor normed = wide * rstd, pulled = g * weight;
      at::Tensor dx = rstd * (pulled - normed * (pulled * normed).mean(-1, true));
      return {dx.to(x.scalar_type()), vector_gradient(weight, (g * normed).reshape({-1, n}).sum(0)), {}};
    }
    at::Tensor dx = at::empty_like(x), dw;
    dispatch(x, [&]<class T>(T) {
      const T *dyp = dy.const_data_ptr<T>(), *xp = x.const_data_ptr<T>(), *wp = weight.const_data_ptr<T>();
      const auto* sp = rstd.const_data_ptr<Arithmetic<T>>();
      T* dxp = dx.mutable_data_ptr<T>();
      dw = sums_over_rows(rows, n, [&](std::int64_t a, std::int64_t b, double* sums) {
        kernels<T>().rms_norm_backward(dyp + a * n, xp + a * n, wp, sp + a, dxp + a * n, sums, b - a, n);
      });
    });
    return {dx, vector_gradient(weight, dw), {}};
  }
};

// libtorch's own sums the gradients of weight and bias in 16 bits on a CPU: with a thousand rows of bf16 four percent
// are lost.
struct LayerNorm : Function<LayerNorm> {
  struct State {
    at::Tensor x, weight, bias, mean, rstd;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
    at::Tensor x = x_in.contiguous(), y, mean, rstd;
    use_weight(weight), use_weight(bias);
    if (x.is_cpu()) {
      std::int64_t n = x.size(-1), rows = x.numel() / n;
      y = at::empty_like(x);
      mean = at::empty({rows}, x.options().dtype(arithmetic_type(x))), rstd = at::empty_like(mean);
      dispatch(x, [&]<class T>(T) {
        const T *xp = x.const_data_ptr<T>(), *wp = weight.const_data_ptr<T>(), *bp = bias.const_data_ptr<T>();
        T* yp = y.mutable_data_ptr<T>();
        auto *mp = mean.mutable_data_ptr<Arithmetic<T>>(), *sp = rstd.mutable_data_ptr<Arithmetic<T>>();
        over_rows(rows, n, [&](std::int64_t a, std::int64_t b) {
          kernels<T>().layer_norm(xp + a * n, wp, bp, yp + a * n, mp + a, sp + a, b - a, n, eps);
        });
      });
    } else {
      std::tie(y, mean, rstd) = at::native_layer_norm(x, {x.size(-1)}, weight, bias, eps);
    }
    keep(ctx, State{x.detach(), weight, bias, mean, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, weight, bias, mean, rstd] = take_kept<State>(ctx);
    at::Tensor dy = grads[0].contiguous(), dx, dw, db;
    std::int64_t n = x.size(-1), rows = x.numel() / n;
    use_weight(weight);
    if (!x.is_cpu()) {
      use_weight(bias);
      std::tie(dx, dw, db) = at::native_layer_norm_backward(dy, x, {n}, mean, rstd, weight, bias, {true, true, true});
    } else {
      dx = at::empty_like(x);
      dispatch(x, [&]<class T>(T) {
        const T *dyp = dy.const_data_ptr<T>(), *xp = x.const_data_ptr<T>(), *wp = weight.const_data_ptr<T>();
        const auto *mp = mean.const_data_ptr<Arithmetic<T>>(), *sp = rstd.const_data_ptr<Arithmetic<T>>();
        T* dxp = dx.mutable_data_ptr<T>();
        at::Tensor sums = sums_over_rows(rows, 2 * n, [&](std::int64_t a, std::int64_t b, double* each) {
          kernels<T>().layer_norm_backward(dyp + a * n, xp + a * n, wp, mp + a, sp + a, dxp + a * n, each, b - a, n);
        });
        dw = sums.narrow(0, 0, n), db = sums.narrow(0, n, n);
      });
    }
    return {dx, vector_gradient(weight, dw), vector_gradient(bias, db), {}};
  }
};

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

struct Embedding : Function<Embedding> {
  struct State {
    at::Tensor weight, tokens;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& tokens) {
    keep(ctx, State{weight, tokens});
    use_weight(weight);
    return at::embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [weight, tokens] = take_kept<State>(ctx);
    if (!weight.is_cpu()) return {at::embedding_dense_backward(grads[0], tokens, weight.size(0), -1, false), {}};
    // The rows of each token are summed in the arithmetic type, in the order of their positions. (libtorch adds them
    // one by one in the storage type, which in 16 bits costs a frequent token most of its digits.)
    at::Tensor dy = grads[0].contiguous(), ids = tokens.reshape({-1});
    at::Tensor order = at::argsort(ids, /*stable=*/true, 0, false), sorted = ids.index_select(0, order);
    const auto* ip = sorted.const_data_ptr<std::int64_t>();
    std::vector<std::int64_t> begins;  // where another token begins
    for (std::int64_t i = 0; i < ids.numel(); ++i)
      if (i == 0 || ip[i] != ip[i - 1]) begins.push_back(i);
    begins.push_back(ids.numel());
    const bool in_place = accumulates_in_place(weight);
    at::Tensor dw = in_place ? weight.grad() : at::zeros_like(weight);
    std::int64_t n = weight.size(1), unique = static_cast<std::int64_t>(begins.size()) - 1;
    dispatch(weight, [&]<class T>(T) {
      const T* dyp = dy.const_data_ptr<T>();
      const auto* op = order.const_data_ptr<std::int64_t>();
      T* dwp = dw.mutable_data_ptr<T>();
      over_rows(unique, n * ids.numel() / std::max<std::int64_t>(1, unique), [&](std::int64_t a, std::int64_t b) {
        for (std::int64_t i = a; i < b; ++i) {
          const auto first = begins[static_cast<std::size_t>(i)], last = begins[static_cast<std::size_t>(i) + 1];
          kernels<T>().add_rows(dyp, op + first, last - first, dwp + ip[first] * n, n);
        }
      });
    });
    return {in_place ? at::Tensor() : dw, {}};
  }
};

struct Recomputed : Function<Recomputed> {
  struct State {
    std::function<at::Tensor(const at::Tensor&)> f;
    at::Tensor x;
    std::shared_ptr<KeptInputs::Kept> elsewhere;  // x, if not here
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& f, KeptInputs* inputs) {
    if (inputs == nullptr)
      keep(ctx, State{f, x.detach(), nullptr});
    else
      keep(ctx, State{f, {}, inputs->keep(x)});
    return f(x.detach());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    State state = take_kept<State>(ctx);
    if (state.elsewhere) state.x = state.elsewhere->take();
    at::Tensor x = state.x.detach().requires_grad_(true), y;
    {
      at::AutoGradMode enable(true);
      y = state.f(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), {}, {}};
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

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return LayerNorm::apply(x, weight, bias, eps);
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

at::Tensor embed(const at::Tensor& weight, const at::Tensor& tokens) { return Embedding::apply(weight, tokens); }

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x, at::TensorList weights,
                     const std::shared_ptr<KeptInputs>& inputs) {
  bool trains = std::any_of(weights.begin(), weights.end(), [](const at::Tensor& w) { return w.requires_grad(); });
  if (!at::GradMode::is_enabled() || (!trains && !x.requires_grad())) return f(x);
  // Autograd makes a node only for an input that needs a gradient.
  return Recomputed::apply(x.requires_grad() ? x : x.detach().requires_grad_(true), f, inputs.get());
}

}  // namespace yoke
