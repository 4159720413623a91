"""Writes hf_configs/*.json beside this file: configurations as transformers itself writes them.

Run by hand with transformers 5.24 (pip install transformers==5.24); the tests read the committed files only.
    python tests/golden/make_hf_configs.py
    python tests/golden/make_hf_configs.py --check FOLDER   # AutoConfig reads what hf_config_from_model() wrote there
"""

import json
import pathlib
import sys

from transformers import AutoConfig, GPT2Config, LlamaConfig

HERE = pathlib.Path(__file__).parent / "hf_configs"

CONFIGS = {
    "llama": LlamaConfig(
        vocab_size=1000, hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.03,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "llama_wide_heads_tied": LlamaConfig(
        vocab_size=1000, hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_attention_heads=6,
        head_dim=32, tie_word_embeddings=True),
    "llama_scaled_rope": LlamaConfig(
        hidden_size=96, num_attention_heads=6,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "llama_biased": LlamaConfig(hidden_size=96, num_attention_heads=6, attention_bias=True),
    "gpt2": GPT2Config(),
    "gpt2_small": GPT2Config(vocab_size=300, n_positions=64, n_embd=48, n_layer=2, n_head=4, n_inner=100),
    "gpt2_relu": GPT2Config(activation_function="relu"),
}


def main():
    if sys.argv[1:2] == ["--check"]:
        for path in sorted(pathlib.Path(sys.argv[2]).iterdir()):
            print(path.name, AutoConfig.from_pretrained(path).to_json_string(use_diff=False))
        return
    HERE.mkdir(exist_ok=True)
    for name, config in CONFIGS.items():
        (HERE / f"{name}.json").write_text(json.dumps(json.loads(config.to_json_string()), indent=1) + "\n")


main()
