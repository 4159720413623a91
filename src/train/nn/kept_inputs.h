// Where recomputed layers keep their inputs between forward and backward when that is not the device's memory: in host
// memory or in a file, written while the forward pass goes on and read ahead of the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "os/paged_file.h"

namespace yoke {

class KeptInputs : public std::enable_shared_from_this<KeptInputs> {
 public:
  // `most`: so many are kept at a time (more stay in memory).
  KeptInputs(Offload where, std::string folder, std::int64_t most)
      : where_(where), folder_(std::move(folder)), most_(most) {}

  // One that is kept until it is taken or dropped.
  class Kept {
   public:
    explicit Kept(std::shared_ptr<KeptInputs> owner) : owner_(std::move(owner)) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    // On its device again; once. Zeros after an error.
    at::Tensor take();

   private:
    friend class KeptInputs;
    std::shared_ptr<KeptInputs> owner_;
    at::Tensor tensor_;  // in memory
    at::Device device_ = at::kCPU;
    std::optional<std::size_t> page_;
    std::vector<std::int64_t> sizes_;
    at::ScalarType type_ = at::kFloat;
  };
  std::shared_ptr<Kept> keep(const at::Tensor& x);

  // What went wrong with the file since the last call. The pass that it happened in is worth nothing.
  Result<void> check();

 private:
  Result<void> make_file(std::size_t page_bytes);
  Result<void> write(Kept& kept, const at::Tensor& x);
  Result<at::Tensor> read(Kept& kept);
  void free(std::size_t page);

  const Offload where_;
  const std::string folder_;
  const std::int64_t most_;
  std::size_t page_bytes_ = 0;
  at::Tensor pages_;  // of the file that are in memory
  std::unique_ptr<PagedFile> file_;
  std::vector<std::size_t> free_;   // pages
  std::vector<std::size_t> order_;  // of the kept pages, the last kept at the end
  std::optional<Error> error_;
};

}  // namespace yoke
