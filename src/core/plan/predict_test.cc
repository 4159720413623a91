#include "core/plan/predict.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace yoke {
namespace {

// 2 layers, hidden 8, 2 heads of 4 with 1 kv head, ffn 12, vocab 10: 1160 parameters (model_test.cc).
Model small_llama() { return {Family::llama, 2, 8, 2, 1, 4, 12, 10, 16, false, 10000, 1e-5, 0.02}; }
// 2 layers, hidden 8, 2 heads, ffn 12, vocab 10, 16 positions, tied: 10*8 + 16*8 + 2*532 + 16 = 1288 parameters.
Model small_gpt2() { return {Family::gpt2, 2, 8, 2, 2, 4, 12, 10, 16, true, 10000, 1e-5, 0.02}; }

RunSpec spec_of(const Model& m) {
  RunSpec spec;
  spec.model.shape = m;
  spec.data.sequence = 5;
  spec.train.steps = 5;
  spec.checkpoint.every = 1;
  return spec;
}

MemoryPrediction predict(const Model& m, Precision precision, Recompute recompute, std::int64_t data_ranks = 1) {
  return *predict_memory(spec_of(m), {.data = data_ranks,
                                      .micro_batch = 3,  // 15 tokens
                                      .recompute = recompute,
                                      .precision = precision});
}

// Table I of the ZeRO paper: 7.5 B parameters on 64 GPUs.
TEST(PredictMemory, TheZeroPapersTable) {
  const double parameters = 7.5e9;
  const double gb[] = {120, 31.4, 16.6, 1.9};
  for (int zero : {0, 1, 2, 3}) {
    const double bytes = parameters * state_bytes_of_the_paper(zero, 64).total();
    EXPECT_NEAR(bytes / 1e9, gb[zero], 0.05) << zero;
  }
}

TEST(PredictMemory, BytesAParameter) {
  for (std::int64_t d : {1, 2, 4, 64}) {
    const auto n = static_cast<double>(d);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::bf16, 0, d).total(), 18);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::bf16, 1, d).total(), 6 + 12 / n);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::fp16, 2, d).total(), 2 + 16 / n);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::bf16, 3, d).total(), 18 / n);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::fp32, 1, d).total(), 8 + 8 / n);
    EXPECT_DOUBLE_EQ(state_bytes(Precision::fp32, 3, d).total(), 16 / n);
  }
}

TEST(PredictMemory, OffloadToFilesLeavesPages) {
  RunSpec spec = spec_of(small_llama());
  spec.model.shape.layers = 9;
  Layout layout{.data = 2, .micro_batch = 3, .recompute = Recompute::full, .precision = Precision::bf16};
  layout.zero = 3;
  layout.shard_group = 2;
  const MemoryPrediction before = *predict_memory(spec, layout);
  spec.offload = {Offload::file, Offload::file, Offload::file, ""};
  const MemoryPrediction after = *predict_memory(spec, layout);
  EXPECT_EQ(after.optimizer, before.optimizer);  // all of it is less than the pages
  EXPECT_EQ(after.gradients, before.gradients);
  // A layer: q 64, k and v 32 each, o 64, gate, up and down 96 each, norms 16.
  EXPECT_EQ(after.parameters, Bytes(3 * 2 * (64 + 32 + 32 + 64 + 3 * 96 + 16) / 2.0));
  EXPECT_EQ((before.activations - after.activations).value, 5 * 15 * 2 * 8.0);  // 4 of 9 inputs are left
  EXPECT_EQ(after.checkpoint, Bytes(0));
  spec.model.shape = {Family::llama, 12, 768, 12, 12, 64, 2048, 32000, 1024, false, 10000, 1e-5, 0.02};
  EXPECT_EQ(predict_memory(spec, layout)->optimizer, Bytes(3 * 12 * 262144.0));
}

TEST(PredictMemory, ModelStatesByHand) {
  const MemoryPrediction fp32 = predict(small_llama(), Precision::fp32, Recompute::none);
  EXPECT_EQ(fp32.parameters, Bytes(4 * 1160));
  EXPECT_EQ(fp32.gradients, Bytes(4 * 1160));
  EXPECT_EQ(fp32.optimizer, Bytes(8 * 1160));
  EXPECT_EQ(fp32.communication, Bytes(0));
  for (Precision precision : {Precision::bf16, Precision::fp16}) {
    const MemoryPrediction half = predict(small_llama(), precision, Recompute::none);
    EXPECT_EQ(half.parameters + half.gradients + half.optimizer, Bytes(18 * 1160));
    EXPECT_EQ(half.parameters, Bytes(2 * 1160));
    EXPECT_EQ(half.gradients, Bytes(4 * 1160));
  }
}

// A llama token in a layer: 4*8 + 4*8 + 3*12 = 100 elements; 2 heads + 2 statistics, 16 bytes. The widest gradients,
// 3*12 = 36 elements, outweigh the loss (8 + 10). Final norm's input: 8.
TEST(PredictMemory, LlamaActivationsByHand) {
  EXPECT_EQ(predict(small_llama(), Precision::fp32, Recompute::none).activations,
            Bytes(15 * (2 * (400 + 16) + 4 * 8 + 4 * 36)));
  EXPECT_EQ(predict(small_llama(), Precision::bf16, Recompute::none).activations,
            Bytes(15 * (2 * (200 + 16) + 2 * 8 + 2 * 36)));
  // Selective: 2*8 + 4*8 + 2*12 = 72 elements.
  EXPECT_EQ(predict(small_llama(), Precision::fp32, Recompute::selective).activations,
            Bytes(15 * (2 * (288 + 16) + 32 + 144)));
  // Full: 8 elements a layer, and one layer made again.
  EXPECT_EQ(predict(small_llama(), Precision::fp32, Recompute::full).activations,
            Bytes(15 * (2 * 32 + 32 + 144 + 416)));
}

// A gpt2 token in a layer: 4*8 + 4*8 + 2*12 = 88 elements; 2 heads + 4 statistics, 24 bytes. Widest gradients: 24
// elements.
TEST(PredictMemory, Gpt2ActivationsByHand) {
  EXPECT_EQ(predict(small_gpt2(), Precision::fp32, Recompute::none).activations,
            Bytes(15 * (2 * (352 + 24) + 32 + 96)));
  EXPECT_EQ(predict(small_gpt2(), Precision::bf16, Recompute::selective).activations,
            Bytes(15 * (2 * (2 * 60 + 24) + 16 + 48)));
}

TEST(PredictMemory, ManyLogitsAreMadeInPieces) {
  Model m = small_llama();
  m.vocab = 1 << 20;  // 8 rows at a time, of 15
  const double loss = 4.0 * (2 * 15 * 8 + 8 * 1048576 + 8.0 * 1048576);
  EXPECT_EQ(predict(m, Precision::fp32, Recompute::none).activations, Bytes(15 * (2 * 416 + 32) + loss));
  m.vocab = 1 << 19;  // 16 rows: all of them
  EXPECT_EQ(predict(m, Precision::fp32, Recompute::none).activations,
            Bytes(15 * (2 * 416 + 32) + 4.0 * 15 * (8 + 524288)));
}

TEST(PredictMemory, CommunicationIsWhatIsWholeForAWhile) {
  Layout layout{.data = 2, .micro_batch = 3, .precision = Precision::bf16};
  RunSpec spec = spec_of(small_llama());
  auto communication = [&](int zero, double bucket_mib) {
    layout.zero = zero;
    spec.train.bucket_mib = bucket_mib;
    return predict_memory(spec, layout)->communication;
  };
  EXPECT_EQ(communication(0, 25), Bytes(0));
  EXPECT_EQ(communication(1, 25), Bytes(0));
  EXPECT_EQ(communication(2, 25), Bytes(2 * 4 * 1160));  // all gradients fit a bucket
  EXPECT_EQ(communication(2, 0.001), Bytes(2 * 0.001 * 1048576));
  // A layer: norms 2*8, q and o 2*64, k and v 2*32, mlp 3*96 = 496; gradients of two, values of three.
  EXPECT_EQ(communication(3, 25), Bytes((2 * 4 + 3 * 2) * 496));
  // Layers without gradients: those of the embedding, 80.
  spec.train.freeze = {"model.layers.*"};
  EXPECT_EQ(communication(3, 25), Bytes(2 * 4 * 80 + 3 * 2 * 496));
  EXPECT_EQ(communication(2, 25), Bytes(2 * 4 * (1160 - 2 * 496)));
}

TEST(PredictMemory, FrozenParametersHaveValuesAlone) {
  RunSpec spec = spec_of(small_llama());
  spec.train.freeze = {"model.embed_tokens*"};  // 80
  auto memory = predict_memory(spec, {.precision = Precision::bf16});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->parameters, Bytes(2 * 1160));
  EXPECT_EQ(memory->gradients, Bytes(4 * 1080));
  EXPECT_EQ(memory->optimizer, Bytes(12 * 1080));
  spec.train.freeze = {"*"};
  memory = predict_memory(spec, {});
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().kind, ErrorKind::usage);
}

TEST(PredictMemory, TheCopyOfACheckpointByHand) {
  RunSpec spec = spec_of(small_llama());
  Layout layout{.data = 2, .micro_batch = 3, .precision = Precision::bf16};
  EXPECT_EQ(predict_memory(spec, layout)->checkpoint, Bytes(12 * 1160 / 2));
  layout.data = 20;
  EXPECT_EQ(predict_memory(spec, layout)->checkpoint, Bytes(12 * 96));  // one matrix of the mlp is more than a 20th
  spec.train.freeze = {"model.embed_tokens*"};
  layout.data = 2;
  EXPECT_EQ(predict_memory(spec, layout)->checkpoint, Bytes((12 * 1080 + 2 * 80) / 2));
}

TEST(PredictMemory, AfterTheLastStepTheCopyFindsNoActivations) {
  RunSpec spec = spec_of(small_llama());  // 5 steps
  Layout layout{.micro_batch = 3, .precision = Precision::bf16};
  const double states = 18 * 1160, activations = 15 * (2 * (200 + 16) + 16 + 72), copy = 12 * 1160;
  auto total = [&](std::int64_t every) {
    spec.checkpoint.every = every;
    return predict_memory(spec, layout)->total();
  };
  EXPECT_EQ(total(4), Bytes(states + activations + copy));
  EXPECT_EQ(total(5), Bytes(states + copy));  // 13920 above 7800
  EXPECT_EQ(total(0), Bytes(states + copy));
  layout.data = 2;
  EXPECT_EQ(total(0), Bytes(states + activations));  // 6960 below it
}

TEST(PredictMemory, RecomputingSavesMemoryAndTotalsAddUp) {
  ASSERT_TRUE(rc::check([] {
    Model m = *rc::gen::element(small_llama(), small_gpt2());
    m.layers = *rc::gen::inRange<std::int64_t>(4, 40);
    m.ffn = *rc::gen::inRange<std::int64_t>(8, 64);
    const auto precision = *rc::gen::element(Precision::fp32, Precision::bf16);
    auto of = [&](Recompute r) { return predict(m, precision, r, 2); };
    RC_ASSERT(of(Recompute::full).activations < of(Recompute::selective).activations);
    RC_ASSERT(of(Recompute::selective).activations < of(Recompute::none).activations);
    const MemoryPrediction p = of(Recompute::none);
    const double sum = p.parameters.value + p.gradients.value + p.optimizer.value + p.activations.value +
                       p.communication.value + p.checkpoint.value;
    RC_ASSERT(p.total() == Bytes(sum));
  }));
}

}  // namespace
}  // namespace yoke
