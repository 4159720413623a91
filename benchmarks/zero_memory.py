#!/usr/bin/env python3
"""Bytes a parameter that each ZeRO stage keeps: measured in `yoke run` beside the formula, and the ZeRO paper's table.

    benchmarks/zero_memory.py [--ranks 2 4] [--precisions bf16 fp32] [--yoke build/bin/yoke]

Trains a Llama of 110 M parameters for two steps with each stage on that many CPU ranks. Measured are the parts parameters,
gradients and optimizer of rank 0's telemetry in the last step (the memory that libtorch asked for), divided by the number of
parameters. Needs about 18 bytes x 110 M x ranks of memory without ZeRO.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = """
name = "zero-memory"
[model]
family = "llama"
layers = 8
hidden = 1024
heads = 16
kv_heads = 16
ffn = 2816
vocab = 4096
max_sequence = 32
tied = false
[data]
train = ["{text}"]
validation = 0
tokenizer = "bytes"
sequence = 32
cache = "{cache}"
[train]
steps = 2
global_batch = {ranks}
micro_batch = 1
precision = "{precision}"
threads = 1
[parallel]
zero = {zero}
[cluster]
per_node = {ranks}
device = "cpu"
[checkpoint]
every = 0
"""


def formula(precision, zero, d):
    """Bytes a parameter: parameters, gradients, optimizer."""
    whole = (4, 4, 8) if precision == "fp32" else (2, 4, 12)
    return tuple(part / (d if zero >= stage else 1) for part, stage in zip(whole, (3, 2, 1)))


def paper(zero, d):
    return 2 / (d if zero >= 3 else 1) + 2 / (d if zero >= 2 else 1) + 12 / (d if zero >= 1 else 1)


def measure(yoke, folder, precision, zero, ranks):
    text = folder / "text.txt"
    text.write_text("All that is measured here is memory. " * 2000)
    spec = folder / "spec.toml"
    spec.write_text(SPEC.format(text=text, cache=folder / "cache", ranks=ranks, precision=precision, zero=zero))
    runs = folder / f"{precision}-{zero}-{ranks}"
    done = subprocess.run([yoke, "run", spec, "--runs-dir", runs, "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"yoke run ended with {done.returncode}\n{done.stdout}{done.stderr}")
    events = [json.loads(line) for line in next(runs.glob("*/latest/events/rank-00000.jsonl")).open()]
    parameters = next(e["parameters"] for e in events if e["kind"] == "start")
    memory = [e["memory"] for e in events if e["kind"] == "step"][-1]
    subprocess.run(["rm", "-rf", runs], check=True)
    return parameters, [memory[part] / parameters for part in ("parameters", "gradients", "optimizer")], memory["communication"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--yoke", default=ROOT / "build/bin/yoke")
    arguments = parser.parse_args()

    print("7.5 B parameters on 64 GPUs, as the ZeRO paper counts (GB): " +
          ", ".join(f"stage {z} {7.5 * paper(z, 64):.1f}" for z in range(4)) + "\n")
    print("| precision | ranks | zero | parameters | gradients | optimizer | sum | formula | off by | whole for a while, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    worst = 0
    with tempfile.TemporaryDirectory(prefix="yoke-zero-") as folder:
        for precision in arguments.precisions:
            for ranks in arguments.ranks:
                for zero in range(4):
                    _, parts, communication = measure(arguments.yoke, pathlib.Path(folder), precision, zero, ranks)
                    expected = formula(precision, zero, ranks)
                    off = max(abs(m / e - 1) for m, e in zip(parts, expected))
                    worst = max(worst, off)
                    print(f"| {precision} | {ranks} | {zero} | " + " | ".join(f"{p:.3f}" for p in parts) +
                          f" | {sum(parts):.3f} | {sum(expected):.3f} | {100 * off:.2f} % | {communication / 2**20:.0f} |", flush=True)
    print(f"\nLargest difference of any part: {100 * worst:.2f} %")


if __name__ == "__main__":
    main()
