#include "train/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/parallel/offload_pages.h"
#include "train/comm/memory.h"

namespace yoke {

Result<std::unique_ptr<AdamW>> AdamW::make(FlatParameters& flat, const OptimizerSpec& spec, Offload where,
                                           const std::string& folder) {
  std::unique_ptr<AdamW> made(new AdamW(flat, spec));
  AdamW& adamw = *made;
  at::NoGradGuard no_grad;
  MemoryScope scope(MemoryPart::optimizer);
  const ShardMap& map = flat.map();
  for (int u = 0; u < flat.unit_count(); ++u) {
    adamw.first_.push_back(adamw.total_);
    adamw.total_ += map.units[static_cast<std::size_t>(u)].trainable ? map.shard(u) : 0;
  }
  adamw.options_ = flat.gradient_options();
  if (where != Offload::none) adamw.options_ = adamw.options_.device(at::kCPU);
  adamw.steps_ = at::zeros({}, adamw.options_.dtype(at::kFloat));
  adamw.find_runs();
  if (where == Offload::file) {
    YOKE_TRY_VOID(adamw.make_file(folder));
  } else {
    std::int64_t total = adamw.total_;
    adamw.all_ = {0, total, {}, at::zeros({total}, adamw.options_), at::zeros({total}, adamw.options_)};
    if (!flat.wide()) adamw.all_.weights = at::zeros({total}, adamw.options_);
  }
  if (!flat.wide())
    YOKE_TRY_VOID(adamw.for_each_part(
        true, false,
        [](const Window& w, const at::Tensor& values, int, std::int64_t at, std::int64_t from, std::int64_t numel) {
          w.weights.narrow(0, at, numel).copy_(values.narrow(0, from, numel));
        }));
  if (adamw.file_ == nullptr && !flat.values_elsewhere() && adamw.options_.device() == flat.value_options().device()) {
    adamw.decayed_.emplace();
    adamw.plain_.emplace();
    for (const Run& run : adamw.runs_)
      adamw.add_run(run, adamw.all_, flat.value_shard(run.unit), flat.gradient_shard(run.unit), 0,
                    run.decay ? *adamw.decayed_ : *adamw.plain_);
  }
  return made;
}

at::Tensor AdamW::Window::part(Part which) const {
  return which == Part::weights ? weights : which == Part::exp_avg ? exp_avg : exp_avg_sq;
}

// Runs of entries with the same decay, one after the other in the same shard.
void AdamW::find_runs() {
  int rank = flat_.groups().shard->rank();
  for (const FlatEntry& entry : flat_.entries()) {
    ShardPart part = part_in_shard(flat_.map(), entry.place, rank);
    if (part.numel == 0 || !entry.parameter.requires_grad()) continue;
    bool decay = spec_.decay == Decay::all || entry.parameter.dim() >= 2;
    if (!runs_.empty()) {
      Run& last = runs_.back();
      if (last.unit == entry.place.unit && last.decay == decay && last.first + last.numel == part.at) {
        last.numel += part.numel;
        continue;
      }
    }
    runs_.push_back({entry.place.unit, decay, part.at, part.numel});
  }
}

Result<void> AdamW::make_file(const std::string& folder) {
  const std::size_t bytes_an_element = (flat_.wide() ? 2 : 3) * options_.dtype().itemsize();
  std::vector<std::size_t> sizes;
  for (std::int64_t first = 0; first < total_; first += offload_page_elements)
    sizes.push_back(static_cast<std::size_t>(std::min(offload_page_elements, total_ - first)) * bytes_an_element);
  const std::int64_t page = sizes.empty() ? 0 : static_cast<std::int64_t>(sizes.front());
  pages_ = at::empty({offload_pages_in_memory, page}, options_.dtype(at::kByte));
  std::vector<std::span<std::byte>> memory;
  for (std::int64_t i = 0; i < offload_pages_in_memory; ++i)
    memory.emplace_back(static_cast<std::byte*>(pages_[i].data_ptr()), static_cast<std::size_t>(page));
  YOKE_TRY(file_, PagedFile::create(folder, sizes, std::move(memory)));
  return {};
}

std::int64_t AdamW::windows() const {
  return file_ == nullptr ? 1 : (total_ + offload_page_elements - 1) / offload_page_elements;
}

Result<AdamW::Window> AdamW::open(std::int64_t window) {
  if (file_ == nullptr) return all_;
  YOKE_TRY(std::span<std::byte> bytes, file_->open(static_cast<std::size_t>(window)));
  Window opened{window * offload_page_elements,
                std::min(offload_page_elements, total_ - window * offload_page_elements)};
  std::byte* next = bytes.data();
  for (at::Tensor* part : {&opened.exp_avg, &opened.exp_avg_sq, &opened.weights}) {
    if (part == &opened.weights && flat_.wide()) break;
    *part = at::from_blob(next, {opened.numel}, options_);
    next += part->nbytes();
  }
  return opened;
}

void AdamW::close(std::int64_t window, bool changed) {
  if (file_ != nullptr) file_->close(static_cast<std::size_t>(window), changed);
}

template <class F>
Result<void> AdamW::for_each_part(bool change_state, bool change_values, F f) {
  int unit = 0;
  at::Tensor values;  // of the unit, open as long as windows go through it
  for (std::int64_t w = 0; w < windows(); ++w) {
    YOKE_TRY(Window window, open(w));
    // The next of this round, or the first of the next one.
    if (file_ != nullptr) file_->expect(static_cast<std::size_t>(w + 1 < windows() ? w + 1 : 0));
    for (; unit < flat_.unit_count(); ++unit) {
      std::int64_t begin = first_[static_cast<std::size_t>(unit)],
                   end = begin + (flat_.gradient_shard(unit).defined() ? flat_.map().shard(unit) : 0),
                   first = std::max(begin, window.first), last = std::min(end, window.first + window.numel);
      if (first < last) {
        if (!values.defined()) {
          YOKE_TRY(values, flat_.open_value_shard(unit));
          if (unit + 1 < flat_.unit_count()) flat_.expect_value_shard(unit + 1);
        }
        f(window, values, unit, first - window.first, first - begin, last - first);
      }
      if (end > window.first + window.numel) break;  // goes on in the next window
      if (values.defined()) flat_.close_value_shard(unit, std::exchange(values, at::Tensor()), change_values);
    }
    close(w, change_state);
  }
  return {};
}

void AdamW::add_run(const Run& run, const Window& window, const at::Tensor& values, const at::Tensor& gradients,
                    std::int64_t from, Lists& lists) const {
  std::int64_t begin = first_[static_cast<std::size_t>(run.unit)], first = std::max(begin + run.first, window.first),
               last = std::min(begin + run.first + run.numel, window.first + window.numel);
  if (first >= last) return;
  auto in_window = [&](const at::Tensor& t) { return t.narrow(0, first - window.first, last - first); };
  auto in_shard = [&](const at::Tensor& t) { return t.narrow(0, first - begin - from, last - first); };
  lists.weights.push_back(flat_.wide() ? in_shard(values) : in_window(window.weights));
  lists.gradients.push_back(in_shard(gradients));
  lists.exp_avg.push_back(in_window(window.exp_avg));
  lists.exp_avg_sq.push_back(in_window(window.exp_avg_sq));
  lists.steps.push_back(steps_);
}

void AdamW::update(Lists& lists, double weight_decay, double learning_rate, double gradient_scale) {
  if (lists.weights.empty()) return;
  std::optional<at::Tensor> divisor;  // the fused operation divides the gradients by it
  if (gradient_scale != 1) divisor = at::full({}, 1 / gradient_scale, steps_.options());
  at::_fused_adamw_(lists.weights, lists.gradients, lists.exp_avg, lists.exp_avg_sq, {}, lists.steps, learning_rate,
                    spec_.beta1, spec_.beta2, weight_decay, spec_.eps, /*amsgrad=*/false, /*maximize=*/false, divisor);
}

Result<void> AdamW::step(double learning_rate, double gradient_scale) {
  at::NoGradGuard no_grad;
  steps_.add_(1);
  if (decayed_) {
    update(*decayed_, spec_.weight_decay, learning_rate, gradient_scale);
    update(*plain_, 0, learning_rate, gradient_scale);
    return publish();
  }
  auto next = runs_.begin();  // the first run of the unit
  return for_each_part(true, true,
                       [&](const Window& window, const at::Tensor& values, int unit, std::int64_t at, std::int64_t from,
                           std::int64_t numel) {
                         Lists decayed, plain;
                         at::Tensor part = values.narrow(0, from, numel),
                                    work = part.to(options_.device()),  // itself on a CPU
                             gradients = flat_.gradient_shard(unit).narrow(0, from, numel).to(options_.device());
                         while (next != runs_.end() && next->unit < unit) ++next;
                         for (auto run = next; run != runs_.end() && run->unit == unit; ++run)
                           add_run(*run, window, work, gradients, from, run->decay ? decayed : plain);
                         update(decayed, spec_.weight_decay, learning_rate, gradient_scale);
                         update(plain, 0, learning_rate, gradient_scale);
                         part.copy_(flat_.wide() ? work : window.weights.narrow(0, at, numel));
                       });
}

Result<void> AdamW::publish() {
  if (flat_.wide()) return {};
  at::NoGradGuard no_grad;
  return for_each_part(
      false, true,
      [](const Window& window, const at::Tensor& values, int, std::int64_t at, std::int64_t from, std::int64_t numel) {
        values.narrow(0, from, numel).copy_(window.weights.narrow(0, at, numel));
      });
}

Result<at::Tensor> AdamW::read(Part part, int unit) {
  at::NoGradGuard no_grad;
  if (part == Part::weights && in_place(unit)) {
    if (!flat_.values_elsewhere()) return flat_.value_shard(unit);
    YOKE_TRY(at::Tensor values, flat_.open_value_shard(unit));
    at::Tensor copy = values.clone();
    flat_.close_value_shard(unit, values, /*changed=*/false);
    return copy;
  }
  std::int64_t begin = first_[static_cast<std::size_t>(unit)], numel = flat_.map().shard(unit);
  if (file_ == nullptr) return all_.part(part).narrow(0, begin, numel);
  at::Tensor copy = at::empty({numel}, options_);
  for (std::int64_t w = begin / offload_page_elements; w * offload_page_elements < begin + numel; ++w) {
    YOKE_TRY(Window window, open(w));
    std::int64_t first = std::max(begin, window.first), last = std::min(begin + numel, window.first + window.numel);
    copy.narrow(0, first - begin, last - first).copy_(window.part(part).narrow(0, first - window.first, last - first));
    close(w, false);
  }
  return copy;
}

Result<void> AdamW::write(Part part, int unit, const at::Tensor& shard) {
  at::NoGradGuard no_grad;
  if (part == Part::weights && in_place(unit)) {
    YOKE_TRY(at::Tensor values, flat_.open_value_shard(unit));
    values.copy_(shard);
    flat_.close_value_shard(unit, values, /*changed=*/true);
    return {};
  }
  std::int64_t begin = first_[static_cast<std::size_t>(unit)], numel = flat_.map().shard(unit);
  for (std::int64_t w = file_ == nullptr ? 0 : begin / offload_page_elements;
       w < windows() && (file_ == nullptr || w * offload_page_elements < begin + numel); ++w) {
    YOKE_TRY(Window window, open(w));
    std::int64_t first = std::max(begin, window.first), last = std::min(begin + numel, window.first + window.numel);
    window.part(part).narrow(0, first - window.first, last - first).copy_(shard.narrow(0, first - begin, last - first));
    close(w, true);
  }
  return {};
}

std::int64_t AdamW::steps() const { return static_cast<std::int64_t>(steps_.item<float>()); }

void AdamW::set_steps(std::int64_t steps) { steps_.fill_(static_cast<double>(steps)); }

namespace {

template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  constexpr std::int64_t block = 1024, lanes = 16;
  double total = 0;
  for (std::int64_t first = 0; first < n; first += block) {
    T sums[lanes] = {};  // independent sums, which the compiler keeps in vectors
    std::int64_t last = std::min(n, first + block), i = first;
    for (; i + lanes <= last; i += lanes)
      for (std::int64_t j = 0; j < lanes; ++j) sums[j] += x[i + j] * x[i + j];
    for (; i < last; ++i) sums[0] += x[i] * x[i];
    for (T sum : sums) total += static_cast<double>(sum);
  }
  return total;
}

}  // namespace

double sum_of_squared_gradients(const FlatParameters& flat) {
  double total = 0;
  for (int u = 0; u < flat.unit_count(); ++u) {
    const at::Tensor& g = flat.gradient_shard(u);
    if (!g.defined()) continue;
    if (!g.is_cpu())
      total += at::linalg_vector_norm(g, 2, std::nullopt, false, at::kDouble).square().item<double>();
    else if (g.scalar_type() == at::kDouble)
      total += sum_of_squares(g.const_data_ptr<double>(), g.numel());
    else
      total += sum_of_squares(g.const_data_ptr<float>(), g.numel());
  }
  return total;
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

double learning_rate(const OptimizerSpec& optimizer, const LrScheduleSpec& schedule, std::int64_t steps,
                     std::int64_t step) {
  if (step < schedule.warmup)
    return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.decay == LrDecay::none) return optimizer.lr;
  double length = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - schedule.warmup));
  double progress = std::min(1.0, static_cast<double>(step - schedule.warmup) / length);
  double share = schedule.decay == LrDecay::linear ? 1 - progress : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return schedule.min_lr + (optimizer.lr - schedule.min_lr) * share;
}

}  // namespace yoke
