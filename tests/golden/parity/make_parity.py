#!/usr/bin/env python3
"""Makes the goldens of this folder: tiny Hugging Face models, and what plain PyTorch computes when it trains them.

The tests read only what this wrote; it is run by hand when a model or a case is added:

    python3 -m venv venv && venv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    venv/bin/python make_parity.py

It writes for each model a folder with
    config.json         as transformers writes it; llama-tied-gqa in the older form of transformers 4
    model.safetensors   seeded random weights (norms and biases too, whose usual 1 and 0 would hide mistakes); llama-untied
                        in bf16 as checkpoints often are, the others in fp32; training is in fp32
    tokens.bin          plain bytes, one a token (not a token file of Yoke's)
    golden.json         what follows

Keys of golden.json
    model, versions     what made it
    logits              of the first micro-batch before any step: values[row][position][vocabulary] flattened, rows 0 and 1,
                        only the listed positions
    cases               trainings, each from the fresh model: hyper-parameters, and
      loss, grad_norm   of each step: sum of the token losses / valid targets of the global batch; L2 norm before clipping
      valid             targets that are not masked, of each step
      gradient_norms    L2 norm of each parameter's gradient in step 0, before clipping
      final             of each parameter after the last step: sum and L2 norm of its elements, and how far each of the two
                        is off (sum_spread, norm_spread) in the trainings of `spread`
      spread            the largest differences (loss absolute, grad_norm and gradient_norms relative) to the same training
                        with other splits into micro-batches and another attention kernel: what is rounding, and no more.
                        A key bias of GPT-2 has no gradient but rounding, which AdamW scales up: hence c_attn.bias

Order of the data: sequence k has the inputs tokens[k*sequence, (k+1)*sequence) and the targets one further. There are
(tokens - 1) / sequence of them, rounded down; step s takes the global_batch sequences from s*global_batch on, modulo that
count, in micro-batches of micro_batch. With `limits` the target at position p of sequence k (the wrapped index) is masked
if p >= limits[k % len(limits)]. The learning rate of step s is lr * min(1, (s + 1) / warmup); AdamW decays every parameter
(`all`) or those with two or more dimensions (`matrices`); gradients are multiplied by min(1, clip / (norm + 1e-6)).
"""
import copy
import json
import math
import os
import pathlib
import re

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
POSITIONS = [0, 1, 13, 31]  # of the logits that are kept
COMMON = dict(steps=12, sequence=32, global_batch=4, micro_batch=2, accumulate=2, lr=1e-3, betas=[0.9, 0.95], eps=1e-8,
              weight_decay=0.1, warmup=4, clip=1.0, precision="fp32")
LIMITS = [32, 20, 7, 27]
NEUTRAL = dict(max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False)
NO_DROPOUT = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)

MODELS = {
    "llama-untied": dict(
        config=transformers.LlamaConfig(
            num_hidden_layers=3, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, intermediate_size=172,
            vocab_size=256, rms_norm_eps=1e-5, tie_word_embeddings=False, **NEUTRAL),
        seed=31, dtype=torch.bfloat16, cases={"base": dict(decay="matrices"), "clipped": dict(decay="all", clip=0.05)}),
    "llama-tied-gqa": dict(
        config=transformers.LlamaConfig(
            num_hidden_layers=3, hidden_size=48, num_attention_heads=6, num_key_value_heads=2, intermediate_size=100,
            vocab_size=257, rope_theta=20000.0, rms_norm_eps=1e-5, tie_word_embeddings=True, **NEUTRAL),
        seed=12, older=True, cases={"base": dict(decay="all"), "masked": dict(decay="matrices", limits=LIMITS)}),
    "llama-gqa-untied": dict(
        config=transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
            intermediate_size=56, vocab_size=128, rope_theta=500000.0, rms_norm_eps=1e-6, tie_word_embeddings=False, **NEUTRAL),
        seed=13, embedding_std=0.03, cases={"base": dict(decay="matrices")}),
    "gpt2-tied": dict(
        config=transformers.GPT2Config(
            n_layer=3, n_embd=48, n_head=4, n_positions=64, vocab_size=256, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=None, use_cache=False, **NO_DROPOUT),
        seed=14, cases={"base": dict(decay="all"), "clipped": dict(decay="matrices", clip=0.05)}),
    "gpt2-untied": dict(
        config=transformers.GPT2Config(
            n_layer=1, n_embd=32, n_head=2, n_inner=80, n_positions=64, vocab_size=256, layer_norm_epsilon=1e-6,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, use_cache=False, **NO_DROPOUT),
        seed=15, embedding_std=0.03, cases={"base": dict(decay="matrices"), "masked": dict(decay="all", limits=LIMITS)}),
}


def build(spec):
    """The model in fp32, with weights large enough that attention and activations matter, and where the epsilon of the norms
    is unusual, embeddings small enough that it does."""
    config = copy.deepcopy(spec["config"])
    kind = transformers.LlamaForCausalLM if config.model_type == "llama" else transformers.GPT2LMHeadModel
    model = kind._from_config(config, attn_implementation="sdpa")
    random = torch.Generator().manual_seed(spec["seed"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=random)
            if "wte" in name or "wpe" in name or "embed_tokens" in name:
                value = spec.get("embedding_std", 0.2) * noise
            elif p.dim() == 2:  # GPT-2's Conv1D keeps (in, out), a Linear (out, in)
                inputs = p.shape[0] if config.model_type == "gpt2" and "lm_head" not in name else p.shape[1]
                gain = 1.5 if re.search("q_proj|k_proj|c_attn|mlp.c", name) else 0.7
                value = gain * noise / math.sqrt(inputs)
            elif name.endswith("bias"):
                value = 0.1 * noise
            else:
                value = 1 + 0.3 * noise
            p.copy_(value.to(spec.get("dtype", torch.float32)))
    return model.train()


def make_tokens(spec):
    """Bytes with something to learn in them: mostly a function of the byte before. 38 sequences, so that steps wrap around."""
    random = numpy.random.default_rng(spec["seed"])
    vocab = min(256, spec["config"].vocab_size)
    tokens = [1]
    while len(tokens) < 38 * COMMON["sequence"] + 12:
        tokens.append(int(random.integers(vocab)) if random.random() < 0.25 else (tokens[-1] * 7 + 3) % vocab)
    return bytes(tokens)


def batch_of(tokens, case, step):
    """Inputs and targets (masked: -100) of a step, each (global_batch, sequence)."""
    length = case["sequence"]
    count = (len(tokens) - 1) // length
    rows = [(step * case["global_batch"] + i) % count for i in range(case["global_batch"])]
    inputs = torch.tensor([list(tokens[k * length:(k + 1) * length]) for k in rows])
    targets = torch.tensor([list(tokens[k * length + 1:(k + 1) * length + 1]) for k in rows])
    for row, k in enumerate(rows):
        if "limits" in case:
            targets[row, case["limits"][k % len(case["limits"])]:] = -100
    return inputs, targets


def norm_of(tensor):
    return tensor.double().norm().item()


def train(spec, case, tokens, micro_batch, attention):
    model = build(spec)
    model.set_attn_implementation(attention)
    named = dict(model.named_parameters())
    decayed = [p for p in named.values() if case["decay"] == "all" or p.dim() >= 2]
    others = [p for p in named.values() if case["decay"] != "all" and p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=case["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=case["lr"], betas=case["betas"], eps=case["eps"], foreach=False)
    out = dict(loss=[], grad_norm=[], valid=[])
    for step in range(case["steps"]):
        inputs, targets = batch_of(tokens, case, step)
        valid = int((targets != -100).sum())
        loss = 0.0
        for x, y in zip(inputs.split(micro_batch), targets.split(micro_batch)):
            logits = model(input_ids=x).logits
            part = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=-100)
            (part / valid).backward()
            loss += part.item()
        norms = {name: norm_of(p.grad) for name, p in named.items()}
        norm = math.sqrt(sum(n * n for n in norms.values()))
        if step == 0:
            out["gradient_norms"] = norms
        factor = min(1.0, case["clip"] / (norm + 1e-6))
        for p in named.values():
            p.grad.mul_(factor)
        for group in optimizer.param_groups:
            group["lr"] = case["lr"] * min(1.0, (step + 1) / case["warmup"])
        optimizer.step()
        optimizer.zero_grad()
        out["loss"].append(loss / valid)
        out["grad_norm"].append(norm)
        out["valid"].append(valid)
    out["final"] = {name: dict(sum=p.double().sum().item(), norm=norm_of(p.detach())) for name, p in named.items()}
    return out


def add_spread(base, others):
    """Adds to a training the largest differences to the same one in other orders of summation."""
    def relative(a, b):
        return abs(a - b) / abs(a)

    base["spread"] = dict(
        loss=max(abs(a - b) for o in others for a, b in zip(base["loss"], o["loss"])),
        grad_norm=max(relative(a, b) for o in others for a, b in zip(base["grad_norm"], o["grad_norm"])),
        gradient_norms=max(relative(n, o["gradient_norms"][p]) for o in others for p, n in base["gradient_norms"].items()))
    for name, final in base["final"].items():
        for key in ("sum", "norm"):
            final[key + "_spread"] = max(abs(final[key] - o["final"][name][key]) for o in others)


def write_model(folder, spec, model):
    """config.json and model.safetensors as save_pretrained would, without its other files."""
    config = json.loads(model.config.to_json_string(use_diff=False) if spec.get("older") else model.config.to_json_string())
    keep = json.loads(spec["config"].to_json_string())
    config = {key: config[key] for key in keep}
    config["architectures"] = [type(model).__name__]
    dtype = str(spec.get("dtype", torch.float32)).removeprefix("torch.")
    config.pop("dtype", None)
    config["torch_dtype" if spec.get("older") else "dtype"] = dtype
    if spec.get("older"):
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None
        config["transformers_version"] = "4.44.0"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({name: p.detach().to(spec.get("dtype", torch.float32)).contiguous() for name, p in model.named_parameters()},
              folder / "model.safetensors", metadata={"format": "pt"})


def check_loads(folder, model):
    """transformers reads the folder back as the same model."""
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    x = torch.arange(32)[None]
    with torch.no_grad():
        assert torch.equal(model.eval()(input_ids=x).logits, again.eval()(input_ids=x).logits)


def to_text(value):
    """JSON with one line for each list of numbers and each small object."""
    text = json.dumps(value, indent=1)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda m: re.sub(r"\s*\n\s*", " ", m[0]), text) + "\n"


def main():
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    for name, spec in MODELS.items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        tokens = make_tokens(spec)
        (folder / "tokens.bin").write_bytes(tokens)
        model = build(spec)
        write_model(folder, spec, model)
        inputs, _ = batch_of(tokens, COMMON, 0)
        with torch.no_grad():
            logits = model(input_ids=inputs[:COMMON["micro_batch"]]).logits[:, POSITIONS]
        check_loads(folder, model)
        golden = dict(
            schema=1, model=name, versions=dict(torch=torch.__version__, transformers=transformers.__version__),
            logits=dict(rows=[0, 1], positions=POSITIONS, vocabulary=logits.shape[-1],
                        values=[float(str(v)) for v in logits.flatten().numpy()]),
            cases=[])
        for case_name, changes in spec["cases"].items():
            case = COMMON | changes
            base = train(spec, case, tokens, case["micro_batch"], "sdpa")
            others = [train(spec, case, tokens, rows, how) for rows, how in ((1, "eager"), (4, "sdpa"), (2, "eager"))]
            add_spread(base, others)
            # With some seeds a gradient is so near to zero that AdamW turns its rounding into a step: no measure of anything.
            assert base["spread"]["loss"] < 1e-6 and base["spread"]["grad_norm"] < 2e-6, "choose another seed"
            golden["cases"].append(dict(name=case_name) | case | base)
            print(f"{name} {case_name}: loss {base['loss'][0]:.4f} to {base['loss'][-1]:.4f}, gradient norm "
                  f"{min(base['grad_norm']):.3f} to {max(base['grad_norm']):.3f}, spread {base['spread']}")
        (folder / "golden.json").write_text(to_text(golden))


if __name__ == "__main__":
    main()
