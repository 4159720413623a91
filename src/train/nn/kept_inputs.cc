#include "train/nn/kept_inputs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "core/parallel/offload_pages.h"

namespace yoke {

KeptInputs::Kept::~Kept() {
  if (page_) owner_->free(*page_);
}

at::Tensor KeptInputs::Kept::take() {
  if (!page_) return std::exchange(tensor_, at::Tensor()).to(device_);
  auto read = owner_->read(*this);
  if (!read && !owner_->error_) owner_->error_ = read.error();
  at::Tensor x = read ? *read : at::zeros(sizes_, at::TensorOptions().dtype(type_));
  owner_->free(*std::exchange(page_, std::nullopt));
  return x.to(device_);
}

std::shared_ptr<KeptInputs::Kept> KeptInputs::keep(const at::Tensor& x) {
  at::NoGradGuard no_grad;
  auto kept = std::make_shared<Kept>(shared_from_this());
  kept->device_ = x.device();
  if (where_ == Offload::file && !error_)
    if (auto written = write(*kept, x); !written) error_ = written.error();
  if (!kept->page_) kept->tensor_ = x.cpu();
  return kept;
}

Result<void> KeptInputs::check() {
  if (!error_) return {};
  return tl::unexpected(*std::exchange(error_, std::nullopt));
}

Result<void> KeptInputs::make_file(std::size_t page_bytes) {
  constexpr std::int64_t buffers = offload_pages_in_memory;
  file_.reset();
  pages_ = at::empty({buffers, static_cast<std::int64_t>(page_bytes)}, at::kByte);
  std::vector<std::span<std::byte>> memory;
  for (std::int64_t i = 0; i < buffers; ++i)
    memory.emplace_back(static_cast<std::byte*>(pages_[i].data_ptr()), page_bytes);
  auto most = static_cast<std::size_t>(most_);
  YOKE_TRY(file_, PagedFile::create(folder_, std::vector<std::size_t>(most, page_bytes), std::move(memory)));
  page_bytes_ = page_bytes;
  free_.clear();
  for (std::size_t i = most; i > 0; --i) free_.push_back(i - 1);
  return {};
}

// Leaves the input in memory when there is no page for it.
Result<void> KeptInputs::write(Kept& kept, const at::Tensor& x) {
  if (x.nbytes() > page_bytes_) {
    if (!order_.empty()) return {};
    YOKE_TRY_VOID(make_file(x.nbytes()));
  }
  if (free_.empty()) return {};
  std::size_t page = free_.back();
  YOKE_TRY(std::span<std::byte> bytes, file_->open_new(page));
  at::from_blob(bytes.data(), x.sizes(), at::TensorOptions().dtype(x.scalar_type())).copy_(x);
  file_->close(page, /*changed=*/true);
  free_.pop_back();
  order_.push_back(page);
  kept.page_ = page;
  kept.sizes_ = x.sizes().vec();
  kept.type_ = x.scalar_type();
  return {};
}

Result<at::Tensor> KeptInputs::read(Kept& kept) {
  std::size_t page = *kept.page_;
  YOKE_TRY(std::span<std::byte> bytes, file_->open(page));
  auto place = std::find(order_.begin(), order_.end(), page);
  if (place != order_.begin()) file_->expect(*(place - 1));
  at::Tensor x = at::from_blob(bytes.data(), kept.sizes_, at::TensorOptions().dtype(kept.type_)).clone();
  file_->close(page, /*changed=*/false);
  return x;
}

void KeptInputs::free(std::size_t page) {
  std::erase(order_, page);
  free_.push_back(page);
}

}  // namespace yoke
