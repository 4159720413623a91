#include "train/nn/functions.h"

#include <ATen/ATen.h>

#include "train/nn/functions_node.h"
#include "train/nn/functions_products.h"
#include "train/nn/weight_access.h"

namespace yoke {
namespace {

bool any_trains(const std::vector<at::Tensor>& weights) {
  return std::any_of(weights.begin(), weights.end(), [](const at::Tensor& w) { return w.requires_grad(); });
}

// What the weights' gradients need of the input: nothing where it can be made again or no weight trains.
at::Tensor kept_input(const at::Tensor& rows, const Again& again, bool trains) {
  return trains && !again ? rows.detach() : at::Tensor();
}

std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

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
    for (const at::Tensor& w : weights) use_weight(w), out += w.size(0);
    at::Tensor y;
    if (one_after_the_other(weights)) {
      y = product(rows, stacked(weights).t());
    } else {
      y = at::empty({rows.size(0), out}, x.options());
      std::int64_t column = 0;
      for (const at::Tensor& w : weights) {
        product_into(y.narrow(1, column, w.size(0)), rows, w.t());
        column += w.size(0);
      }
    }
    keep(ctx, State{kept_input(rows, again, any_trains(weights)), again, std::move(weights)});
    return y.view(with_last(x, out));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weights] = take_kept<State>(ctx);
    at::Tensor dy = rows_of(grads[0]), dx;
    if (ctx->needs_input_grad(0)) {
      for (const at::Tensor& w : weights) use_weight(w);
      if (one_after_the_other(weights)) {
        dx = product(dy, stacked(weights));
      } else {
        std::int64_t column = 0;
        for (const at::Tensor& w : weights) {
          at::Tensor part = product(dy.narrow(1, column, w.size(0)), w);
          dx = dx.defined() ? dx.add_(part) : part;
          column += w.size(0);
        }
      }
      dx = dx.view(with_last(grads[0], weights[0].size(1)));
    }
    variable_list result{dx};
    if (any_trains(weights)) {
      if (again) x = rows_of(again());
      for (at::Tensor& g : weight_gradients(weights, dy, x)) result.push_back(std::move(g));
    }
    result.resize(weights.size() + 2);
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
    use_weight(weight);
    at::Tensor y = product_plus(rows_of(residual), rows, weight.t());
    keep(ctx, State{kept_input(rows, again, weight.requires_grad()), again, weight});
    return y.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weight] = take_kept<State>(ctx);
    at::Tensor dy = rows_of(grads[0]), dx, dw;
    if (ctx->needs_input_grad(1)) {
      use_weight(weight);
      dx = product(dy, weight).view(with_last(grads[0], weight.size(1)));
    }
    if (weight.requires_grad()) {
      if (again) x = rows_of(again());
      dw = weight_gradients({weight}, dy, x)[0];
    }
    return {grads[0], dx, dw, {}};
  }
};

struct Affine : Function<Affine> {
  struct State {
    at::Tensor x;
    Again again;
    at::Tensor weight, bias;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Again& again) {
    at::Tensor rows = rows_of(x);
    keep(ctx, State{kept_input(rows, again, weight.requires_grad()), again, weight, bias});
    use_weight(weight), use_weight(bias);
    return product_plus(bias, rows, weight).view(with_last(x, weight.size(1)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto [x, again, weight, bias] = take_kept<State>(ctx);
    at::Tensor dy = rows_of(grads[0]), dx, dw, db;
    if (ctx->needs_input_grad(0)) {
      use_weight(weight);
      dx = product(dy, weight.t()).view(with_last(grads[0], weight.size(0)));
    }
    if (weight.requires_grad()) {
      if (again) x = rows_of(again());
      // The weight lies as [in, out], so the places of input and output gradient are exchanged.
      dw = weight_gradients({weight}, x, dy)[0];
    }
    if (bias.requires_grad()) db = vector_gradient(bias, dy.sum(0, false, arithmetic_type(dy)));
    return {dx, dw, db, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, std::vector<at::Tensor> weights, Again again) {
  return Linear::apply(x, at::TensorList(weights), again);
}

at::Tensor linear_residual(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, Again again) {
  return LinearResidual::apply(residual, x, weight, again);
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Again again) {
  return Affine::apply(x, weight, bias, again);
}

}  // namespace yoke
