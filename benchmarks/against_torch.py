#!/usr/bin/env python3
"""`yoke run` beside plain PyTorch: the same model, data, optimiser and global batch on two CPU ranks of one thread each.

    benchmarks/against_torch.py --peer PEER --python PYTHON [--shapes small] [--precisions fp32] [--rounds 3] ...

PEER is a training script for torchrun that takes the flags of peer_command() below and ends with one JSON line (step_ms,
tokens_per_s, peak_rss_mb, startup_s, first_step_unix, losses). PYTHON has torch and transformers. Rounds are interleaved: each
runs every row once, every other round in reverse order, so that a machine that slows down slows all rows.

Columns: tokens/s and step ms are medians over the rounds of the median step after three of warm-up; spread is (largest -
smallest) / median of the tokens/s; peak RSS is the larger VmHWM of the two ranks, Yoke's with the checkpoint that it writes
after the last step; start-up runs from the start of the rank-0 process to its first step, `from the command` to the same
moment from the start of the command, launcher included. Losses are compared over the first steps.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 2
WARM_UP = 3      # steps that no median counts
COMPARED = 10    # steps whose losses are compared
TRAINING = dict(lr=1e-3, weight_decay=0.1, clip=1.0, decay="matrices", warmup=0)
SHAPES = {
    "small": dict(layers=4, hidden=128, heads=4, ffn=344, vocab=256, sequence=128, micro_batch=2, steps=43),
    "medium": dict(layers=6, hidden=384, heads=6, ffn=1024, vocab=256, sequence=256, micro_batch=4, steps=13),
}
MAKE_MODEL = """
import json, sys, torch, transformers
shape, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
transformers.logging.disable_progress_bar()
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    num_hidden_layers=shape["layers"], hidden_size=shape["hidden"], num_attention_heads=shape["heads"],
    num_key_value_heads=shape["heads"], intermediate_size=shape["ffn"], vocab_size=shape["vocab"],
    max_position_embeddings=shape["sequence"], tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
)).save_pretrained(folder)
"""
SPEC = """
name = "yoke"
[model]
path = "{model}"
[data]
train = ["{data}"]
validation = 0
tokenizer = "bytes"
sequence = {sequence}
order = "sequential"
cache = "{cache}"
[train]
steps = {steps}
global_batch = {global_batch}
micro_batch = {micro_batch}
precision = "{precision}"
threads = 1
[train.optimizer]
lr = {lr}
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = {weight_decay}
decay = "{decay}"
clip = {clip}
[train.schedule]
warmup = {warmup}
[parallel]
layout = "sizes"
data = {ranks}
[cluster]
per_node = {ranks}
device = "cpu"
[restart]
max = 0
"""


def run_command(command, **options):
    """The standard output of a command and the wall-clock time of its start; ends the program if the command fails."""
    began = time.time()
    with subprocess.Popen(list(map(str, command)), env=dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watch = options.get("watch")
        if watch:
            watch.start(process.pid)
        out, err = process.communicate()
        if watch:
            watch.stop()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with code {process.returncode}:\n{out}\n{err}")
    return out, began


class PeakWatch:
    """Reads VmHWM of the yoke-worker processes below a process every 20 ms until stopped; peaks holds the last of each."""

    def __init__(self):
        self.peaks = {}
        self._stopped = threading.Event()

    def start(self, pid):
        self._thread = threading.Thread(target=self._poll, args=(pid,))
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _poll(self, ancestor):
        next_search = 0
        while not self._stopped.wait(0.02):
            # Going through all of /proc costs milliseconds; the workers need it only until all are found.
            if len(self.peaks) < RANKS and time.monotonic() >= next_search:
                next_search = time.monotonic() + 0.2
                for pid in self._workers(ancestor):
                    self.peaks.setdefault(pid, 0)
            for pid in self.peaks:
                self.peaks[pid] = int(status_of(pid).get("VmHWM", "0").split()[0]) or self.peaks[pid]

    @staticmethod
    def _workers(ancestor):
        status = {int(p): status_of(p) for p in os.listdir("/proc") if p.isdigit()}
        parent = {pid: int(s["PPid"]) for pid, s in status.items() if "PPid" in s}
        for pid, s in status.items():
            if s.get("Name") == "yoke-worker":
                above = pid
                while above in parent and above != ancestor:
                    above = parent[above]
                if above == ancestor:
                    yield pid


def status_of(pid):
    """/proc/PID/status as a dict; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in f)}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def peer_command(args, mode, shape, precision, folder):
    return [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, args.peer, "--mode", mode,
            "--model", folder / "model", "--data", folder / "bytes.txt", "--seq", shape["sequence"],
            "--micro-batch", shape["micro_batch"], "--accumulate", 1, "--steps", shape["steps"], "--threads", 1,
            "--precision", precision, "--lr", TRAINING["lr"], "--weight-decay", TRAINING["weight_decay"],
            "--decay", TRAINING["decay"], "--clip", TRAINING["clip"], "--warmup", TRAINING["warmup"]]


def run_peer(args, mode, shape, precision, folder):
    out, began = run_command(peer_command(args, mode, shape, precision, folder))
    result = json.loads(out.splitlines()[-1])
    return dict(tokens_per_s=result["tokens_per_s"], step_ms=result["step_ms"], peak_mb=result["peak_rss_mb"],
                startup_s=result["startup_s"], command_s=result["first_step_unix"] - began, losses=result["losses"])


def run_yoke(args, shape, precision, folder):
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        spec = pathlib.Path(runs) / "spec.toml"
        spec.write_text(SPEC.format(**shape, **TRAINING, model=folder / "model", data=folder / "bytes.txt",
                                    cache=folder / "tokens", precision=precision, ranks=RANKS,
                                    global_batch=RANKS * shape["micro_batch"]))
        watch = PeakWatch()
        _, began = run_command([args.yoke, "run", spec, "--runs-dir", pathlib.Path(runs) / "runs", "--quiet"], watch=watch)
        events = pathlib.Path(runs) / "runs/yoke/latest/events/rank-00000.jsonl"
        records = [json.loads(line) for line in events.read_text().splitlines()]
    steps = [r for r in records if r["kind"] == "step"]
    start = next((r for r in records if r["kind"] == "start"), {})
    if len(steps) != shape["steps"]:
        sys.exit(f"{events}: {len(steps)} step records of {shape['steps']}")
    seconds = statistics.median(s["seconds"]["total"] for s in steps[WARM_UP:])
    return dict(tokens_per_s=steps[0]["tokens"] / seconds, step_ms=seconds * 1e3,
                peak_mb=max(watch.peaks.values(), default=0) / 1024 or None, startup_s=start.get("startup_seconds"),
                command_s=steps[0]["time"] - steps[0]["seconds"]["total"] - began, losses=[s["loss"] for s in steps])


def middle(runs, key):
    """The median over the runs, or None if it was not measured in all of them."""
    values = [run[key] for run in runs]
    return None if None in values else statistics.median(values)


def cell(value, form):
    return "-" if value is None else format(value, form)


def ratio(value, base):
    return "-" if value is None or not base else f"{value / base:.2f}"


def print_table(title, rows):
    """rows: name -> runs; the first row is what the ratios refer to."""
    base_name, base_runs = next(iter(rows.items()))
    base = {key: middle(base_runs, key) for key in ("tokens_per_s", "peak_mb")}
    print(f"\n### {title}\n\n| row | tokens/s | spread | ratio to {base_name} | step ms | peak RSS of a rank, MB "
          f"| ratio to {base_name} | start-up, s | from the command, s |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, runs in rows.items():
        speed, peak = middle(runs, "tokens_per_s"), middle(runs, "peak_mb")
        speeds = [run["tokens_per_s"] for run in runs]
        print(f"| {name} | {speed:.0f} | {(max(speeds) - min(speeds)) / speed:.1%} | {ratio(speed, base['tokens_per_s'])} "
              f"| {middle(runs, 'step_ms'):.1f} | {cell(peak, '.0f')} | {ratio(peak, base['peak_mb'])} "
              f"| {cell(middle(runs, 'startup_s'), '.1f')} | {cell(middle(runs, 'command_s'), '.1f')} |")
    expected = base_runs[0]["losses"][:COMPARED]
    print(f"\nLargest difference to the losses of {base_name} in the first {len(expected)} steps:", "; ".join(
        f"{name} {max(abs(a - b) for run in runs for a, b in zip(run['losses'], expected)):.1e}" for name, runs in rows.items()),
        flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, type=pathlib.Path, help="the PyTorch training script")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--yoke", type=pathlib.Path, default=ROOT / "build/bin/yoke")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--modes", nargs="+", choices=("ddp", "dp", "zero1", "fsdp2"), default=["ddp", "dp"], help="rows of the peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help=f"more than {WARM_UP}; without it, as many as fit the shape")
    args = parser.parse_args()
    if args.rounds < 1 or (args.steps is not None and args.steps <= WARM_UP):
        parser.error(f"want --rounds of at least 1 and --steps of more than {WARM_UP}")

    with tempfile.TemporaryDirectory(prefix="yoke-against-torch-") as work:
        for name in args.shapes:
            shape = SHAPES[name] | (dict(steps=args.steps) if args.steps else {})
            folder = pathlib.Path(work) / name
            folder.mkdir()
            (folder / "bytes.txt").write_bytes(random.Random(1).randbytes(1 << 20))
            run_command([args.python, "-c", MAKE_MODEL, json.dumps(shape), folder / "model"])
            for precision in args.precisions:
                rows = {f"torch {mode}": [] for mode in args.modes} | {"yoke": []}
                for turn in range(args.rounds):
                    for row in list(rows) if turn % 2 == 0 else reversed(rows):
                        if row == "yoke":
                            rows[row].append(run_yoke(args, shape, precision, folder))
                        else:
                            rows[row].append(run_peer(args, row.removeprefix("torch "), shape, precision, folder))
                        print(f"{name} {precision} round {turn + 1}: {row} {rows[row][-1]['tokens_per_s']:.0f} tokens/s",
                              file=sys.stderr)
                print_table(f"{name}, {precision}", rows)


if __name__ == "__main__":
    main()
