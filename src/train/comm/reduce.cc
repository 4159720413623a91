#include "train/comm/reduce.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "core/base/result.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// One copy of the loop for each instruction set, chosen when the program starts.
#define YOKE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define YOKE_CLONES
#endif

namespace yoke {
namespace {

constexpr std::int64_t block = 2048;           // elements: the partial result stays in the first-level cache
constexpr std::int64_t piece = 1 << 17;        // elements that are worth a thread
constexpr std::size_t copy_piece = 512 << 10;  // bytes

YOKE_CLONES void load_bf16(float* to, const std::uint16_t* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, 4);
  }
}

// Round to nearest even; a NaN stays one.
YOKE_CLONES void store_bf16(std::uint16_t* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + i, 4);
    std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[i] = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

YOKE_CLONES void add(float* sum, const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

YOKE_CLONES void add_two(float* sum, const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

template <class T>
void combine(ReduceOp op, T* result, const T* x, std::int64_t n) {
  switch (op) {
    case ReduceOp::sum:
      if constexpr (std::is_same_v<T, float>)
        add(result, x, n);
      else
        for (std::int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(result[i] + x[i]);
      break;
    case ReduceOp::max:
      for (std::int64_t i = 0; i < n; ++i) result[i] = std::max(result[i], x[i]);
      break;
    case ReduceOp::min:
      for (std::int64_t i = 0; i < n; ++i) result[i] = std::min(result[i], x[i]);
      break;
  }
}

template <class T, class A>
void load(A* to, const T* from, std::int64_t n) {
  if constexpr (std::is_same_v<T, A>)
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  else if constexpr (std::is_same_v<T, c10::BFloat16>)
    load_bf16(to, reinterpret_cast<const std::uint16_t*>(from), n);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
}

template <class T, class A>
void store(T* to, const A* from, std::int64_t n) {
  if constexpr (std::is_same_v<T, A>)
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  else if constexpr (std::is_same_v<T, c10::BFloat16>)
    store_bf16(reinterpret_cast<std::uint16_t*>(to), from, n);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

// A is the type of the arithmetic.
template <class T, class A>
void reduce_range(ReduceOp op, std::span<void* const> outputs, std::span<const void* const> inputs, std::int64_t first,
                  std::int64_t last) {
  alignas(64) A result[block];
  alignas(64) A next[std::is_same_v<T, A> ? 1 : block];
  for (std::int64_t at = first; at < last; at += block) {
    std::int64_t n = std::min(block, last - at);
    auto input = [&](std::size_t k) { return static_cast<const T*>(inputs[k]) + at; };
    std::size_t k = 1;
    if constexpr (std::is_same_v<T, float>) {
      if (op == ReduceOp::sum && inputs.size() > 1) {
        add_two(result, input(0), input(1), n);
        k = 2;
      } else {
        load(result, input(0), n);
      }
    } else {
      load(result, input(0), n);
    }
    for (; k < inputs.size(); ++k) {
      if constexpr (std::is_same_v<T, A>) {
        combine(op, result, input(k), n);
      } else {
        load(next, input(k), n);
        combine(op, result, next, n);
      }
    }
    for (void* output : outputs) store(static_cast<T*>(output) + at, result, n);
  }
}

template <class T, class A>
void reduce_all(ReduceOp op, std::span<void* const> outputs, std::span<const void* const> inputs, std::int64_t count) {
  at::parallel_for(0, count, piece, [&](std::int64_t first, std::int64_t last) {
    reduce_range<T, A>(op, outputs, inputs, first, last);
  });
}

}  // namespace

bool can_reduce(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

void reduce(ReduceOp op, at::ScalarType type, std::span<void* const> outputs, std::span<const void* const> inputs,
            std::int64_t count) {
  switch (type) {
    case at::kFloat:
      return reduce_all<float, float>(op, outputs, inputs, count);
    case at::kDouble:
      return reduce_all<double, double>(op, outputs, inputs, count);
    case at::kBFloat16:
      return reduce_all<c10::BFloat16, float>(op, outputs, inputs, count);
    case at::kHalf:
      return reduce_all<c10::Half, float>(op, outputs, inputs, count);
    case at::kInt:
      return reduce_all<std::int32_t, std::int32_t>(op, outputs, inputs, count);
    case at::kLong:
      return reduce_all<std::int64_t, std::int64_t>(op, outputs, inputs, count);
    case at::kByte:
    case at::kBool:
      return reduce_all<std::uint8_t, std::uint8_t>(op, outputs, inputs, count);
    default:
      YOKE_CHECK(false, "no reduction of {}", c10::toString(type));
  }
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes <= copy_piece || at::get_num_threads() == 1) {
    std::memcpy(to, from, bytes);
    return;
  }
  at::parallel_for(0, static_cast<std::int64_t>(bytes), copy_piece, [&](std::int64_t first, std::int64_t last) {
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first,
                static_cast<std::size_t>(last - first));
  });
}

}  // namespace yoke
