#include "train/nn/functions.h"

#include <ATen/ATen.h>

#include "core/parallel/head_rows.h"
#include "train/nn/functions_node.h"
#include "train/nn/functions_products.h"
#include "train/nn/weight_access.h"

namespace yoke {
namespace {

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
                            const at::Tensor& targets, double scale, std::int64_t each, bool gradient) {
    at::Tensor hidden = hidden_in.contiguous().detach();
    std::int64_t rows = hidden.size(0);
    State state;
    at::Tensor loss;
    use_weight(weight);
    if (rows <= each) {
      at::Tensor logits = product(hidden, weight.t());
      loss = cross_entropy(logits, targets, scale, gradient);
      if (gradient) state = {hidden, weight, logits, {}, {}};
    } else {
      loss = at::zeros({}, hidden.options().dtype(at::kDouble));
      state.weight = weight;
      if (gradient && hidden_in.requires_grad()) state.dhidden = at::empty_like(hidden);
      // Rounding to 16 bits after every piece would cost as many roundings as there are pieces, so the sum is wider.
      if (gradient && weight.requires_grad())
        state.dweight = at::zeros(weight.sizes(), weight.options().dtype(arithmetic_type(weight)));
      for (std::int64_t first = 0; first < rows; first += each) {
        std::int64_t n = std::min(each, rows - first);
        at::Tensor part = hidden.narrow(0, first, n);
        at::Tensor logits = product(part, weight.t());
        loss.add_(cross_entropy(logits, targets.narrow(0, first, n), scale, gradient));
        if (state.dhidden.defined()) product_into(state.dhidden.narrow(0, first, n), logits, weight);
        if (state.dweight.defined()) add_product(state.dweight, logits.t(), part);
      }
    }
    keep(ctx, std::move(state));
    return loss.mul_(scale);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    State s = take_kept<State>(ctx);
    // The gradients were made for an upstream gradient of 1, which is what backward() on the loss gives. Another one
    // may be beyond fp16, so it is no scalar, which would take the type of what it multiplies.
    bool one = grads[0].is_cpu() && grads[0].item<double>() == 1;
    at::Tensor upstream = grads[0].to(arithmetic_type(s.weight)).view({1, 1});
    for (at::Tensor* gradient : {&s.dlogits, &s.dhidden, &s.dweight})
      if (!one && gradient->defined()) gradient->mul_(upstream);
    if (s.dlogits.defined()) {
      if (ctx->needs_input_grad(0)) {
        use_weight(s.weight);
        s.dhidden = product(s.dlogits, s.weight);
      }
      s.dweight = weight_gradients({s.weight}, s.dlogits, s.hidden)[0];
    } else if (s.dweight.defined()) {
      s.dweight = s.dweight.to(s.weight.scalar_type());
    }
    return {s.dhidden, s.dweight, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale) {
  return head_loss(hidden, weight, targets, scale, head_rows_at_once(weight.size(0)));
}

at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
                     std::int64_t rows_at_once) {
  bool gradient = at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  return HeadLoss::apply(hidden, weight, targets, scale, rows_at_once, gradient);
}

}  // namespace yoke
