#!/usr/bin/env python3
"""Writes scalars.tfevents beside itself with TensorBoard's own encoder: what tfevents_test.cc must reproduce byte for byte.

    python3 -m venv /tmp/tb && /tmp/tb/bin/pip install tensorboard==2.21.0
    /tmp/tb/bin/python tests/golden/make_tfevents.py

With a folder as argument it instead reads that folder's event files with TensorBoard and prints their scalars.
"""
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

# (wall time, step, {tag: value}); the same table stands in src/core/telemetry/tfevents_test.cc
ROWS = [
    (1700000000.25, 0, {"loss/train": 5.545177459716797}),
    (1700000001.5, 1, {"loss/train": 4.25, "grad_norm": 0.98, "learning_rate": 3e-4}),
    (1700000002.125, 300, {"loss/validation": float("inf"), "tokens_per_second": 1.2345678e9}),
    (1700000003.0, 5_000_000_000, {"loss/train": 0.0, "t\u00e4g \U0001f402": -1e-30}),
]


def write(path):
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1700000000.0, file_version="brain.Event:2").SerializeToString())
        for wall_time, step, scalars in ROWS:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)).SerializeToString())


def show(folder):
    accumulator = EventAccumulator(folder)
    accumulator.Reload()
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            print(tag, event.step, repr(event.wall_time), repr(event.value))


if __name__ == "__main__":
    show(sys.argv[1]) if len(sys.argv) > 1 else write(pathlib.Path(__file__).with_name("scalars.tfevents"))
