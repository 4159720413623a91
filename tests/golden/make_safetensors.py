#!/usr/bin/env python3
"""Writes small.safetensors beside itself with Hugging Face's own package: the reference of safetensors_test.cc.

    python3 -m venv /tmp/st && /tmp/st/bin/pip install torch==2.13.0 safetensors==0.8.0
    /tmp/st/bin/python tests/golden/make_safetensors.py
"""

import pathlib

import torch
from safetensors.torch import save_file

tensors = {
    "f32": torch.tensor([[0.0, 1.5, -2.0], [3.25, 4.0, 5.0]]),
    "bf16": torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16),
    "f16": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float16),
    "f64": torch.tensor([0.1], dtype=torch.float64),
    "i64": torch.tensor([-1, 1 << 40]),
    "i32": torch.tensor([[7], [-7]], dtype=torch.int32),
    "i16": torch.tensor([-300], dtype=torch.int16),
    "i8": torch.tensor([-5, 5, 6], dtype=torch.int8),
    "u8": torch.tensor([255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(42.0),
    "empty": torch.zeros(0, 5),
    "layer.0/odd \u00e9 \"name\"": torch.tensor([1.0]),
}
save_file(tensors, str(pathlib.Path(__file__).with_name("small.safetensors")), metadata={"format": "pt"})
