#include "core/spec/model.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace yoke {
namespace {

struct Size {
  const char* name;
  std::int64_t value;
  std::int64_t most;  // far above any model; keeps every count and byte size below within 63 bits
};

Result<void> reject(std::string what, std::string hint) {
  return fail(ErrorKind::usage, std::move(what), std::move(hint));
}

std::int64_t input_embedding_count(const Model& m) {
  return m.vocab * m.hidden + (m.family == Family::gpt2 ? m.max_sequence * m.hidden : 0);
}

std::int64_t layer_count(const Model& m) {
  const std::int64_t queries = m.heads * m.head_dim, keys = m.kv_heads * m.head_dim;
  const std::int64_t attention = m.hidden * (queries + 2 * keys) + queries * m.hidden;
  if (m.family == Family::llama) return attention + 3 * m.hidden * m.ffn + 2 * m.hidden;
  const std::int64_t biases = queries + 2 * keys + m.hidden + m.ffn + m.hidden;
  return attention + 2 * m.hidden * m.ffn + biases + 2 * (2 * m.hidden);
}

}  // namespace

Result<void> check(const Model& m) {
  const std::array sizes = {
      Size{"layers", m.layers, 1 << 12},     Size{"hidden", m.hidden, 1 << 18},
      Size{"heads", m.heads, 1 << 14},       Size{"kv_heads", m.kv_heads, 1 << 14},
      Size{"head_dim", m.head_dim, 1 << 12}, Size{"ffn", m.ffn, 1 << 20},
      Size{"vocab", m.vocab, 1 << 24},       Size{"max_sequence", m.max_sequence, 1 << 28},
  };
  for (const Size& size : sizes) {
    if (size.value < 1 || size.value > size.most) {
      return reject(fmt::format("{} is {}", size.name, size.value),
                    fmt::format("{} is a number from 1 to {}", size.name, size.most));
    }
  }
  if (m.heads * m.head_dim > 1 << 18) {
    return reject(fmt::format("heads * head_dim is {} * {}, above {}", m.heads, m.head_dim, 1 << 18),
                  "head_dim is usually hidden / heads");
  }
  if (m.heads % m.kv_heads != 0) {
    return reject(fmt::format("kv_heads is {}, which does not divide {} heads", m.kv_heads, m.heads),
                  "each key-value head serves the same number of heads: choose kv_heads that divides heads");
  }
  if (m.family == Family::gpt2 && m.kv_heads != m.heads) {
    return reject(
        fmt::format("kv_heads is {} with {} heads, but gpt2 has no grouped-query attention", m.kv_heads, m.heads),
        "leave kv_heads out, or choose family llama");
  }
  if (m.family == Family::gpt2 && m.heads * m.head_dim != m.hidden) {
    return reject(
        fmt::format("hidden is {}, but gpt2 needs heads * head_dim, which is {} * {}", m.hidden, m.heads, m.head_dim),
        "choose a hidden size that is a multiple of the heads, and leave head_dim out");
  }
  if (m.family == Family::llama && m.head_dim % 2 != 0) {
    return reject(fmt::format("head_dim is {}, but rotary positions turn pairs of elements", m.head_dim),
                  "choose hidden and heads so that hidden / heads is even");
  }
  if (!(m.rope_theta >= 1 && m.rope_theta <= 1e12)) {
    return reject(fmt::format("rope_theta is {}", m.rope_theta),
                  "rope_theta is a number from 1 to 1e12; 10000 is usual");
  }
  if (!(m.norm_eps > 0 && m.norm_eps < 1)) {
    return reject(fmt::format("norm_eps is {}", m.norm_eps), "norm_eps is a small number above 0; 1e-5 is usual");
  }
  if (!(m.init_std > 0 && m.init_std <= 10)) {
    return reject(fmt::format("init_std is {}", m.init_std), "init_std is a number above 0, up to 10; 0.02 is usual");
  }
  return {};
}

std::int64_t parameter_count(const Model& m) {
  const std::int64_t final_norm = (m.family == Family::llama ? 1 : 2) * m.hidden;
  const std::int64_t head = m.tied ? 0 : m.vocab * m.hidden;
  return input_embedding_count(m) + m.layers * layer_count(m) + final_norm + head;
}

double training_flops_per_token(const Model& m, std::int64_t sequence) {
  const std::int64_t multiplied = parameter_count(m) - input_embedding_count(m) + (m.tied ? m.vocab * m.hidden : 0);
  return 6.0 * static_cast<double>(multiplied) +
         12.0 * static_cast<double>(m.layers * m.heads * m.head_dim) * static_cast<double>(sequence);
}

const char* name(Family family) { return family == Family::llama ? "llama" : "gpt2"; }

}  // namespace yoke
