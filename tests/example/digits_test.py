#!/usr/bin/env python3
"""Installs a build, builds examples/digits against it as a project of its own, and trains it on one to three ranks.

In double precision: Adam turns the rounding of a gradient that is zero but for rounding into whole steps, so in single
precision the machine's kernels decide how far equal runs come to lie apart.

    digits_test.py BUILD DIGITS.csv

Python's standard library only. The build must be complete, with the engine.
"""
import array
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

BUILD, DIGITS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "digits"
LIMIT = 600  # seconds for any one command
EPOCHS = 10
TOLERANCE = 1e-7  # of a weight, where the largest are about 1
# Nothing that the person who runs the tests has set may leak in, and one thread gives the same bits each time.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "YOKE_", "TORCH", "OMP_", "RANK", "WORLD_", "MASTER_"))}
ENVIRONMENT["OMP_NUM_THREADS"] = "1"


def run(*command):
    done = subprocess.run([str(c) for c in command], env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def weights(checkpoint):
    """{name: (shape, numbers)} of the one safetensors file: 8 bytes of length, a JSON header, the bytes."""
    data = next(checkpoint.glob("model-*.safetensors")).read_bytes()
    end = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        found[name] = (entry["shape"], array.array({"F32": "f", "F64": "d"}[entry["dtype"]], data[end + first:end + last]))
    return found


class Digits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="yoke-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.dir = pathlib.Path(folder.name)
        prefix = cls.dir / "prefix"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        run("cmake", "-S", EXAMPLE, "-B", cls.dir / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", cls.dir / "build")
        cls.program = cls.dir / "build" / "digits"
        cls.yoke = prefix / "bin" / "yoke"
        cls.one, cls.one_accuracy = cls.train("one", EPOCHS)

    @classmethod
    def train(cls, name, epochs, ranks=1):
        """Trains up to `epochs` in the checkpoints folder `name`; its weights, and the test accuracy by epoch."""
        launcher = [] if ranks == 1 else [cls.yoke, "launch", "--nproc-per-node", ranks, "--"]
        text = run(*launcher, cls.program, DIGITS, cls.dir / name, epochs, "float64")
        accuracy = {int(epoch): float(share) for epoch, share in re.findall(r"epoch (\d+)  test accuracy ([\d.]+)", text)}
        return weights(cls.dir / name / f"step-{epochs:08d}"), accuracy

    def largest_difference(self, other):
        self.assertEqual({n: shape for n, (shape, _) in self.one.items()}, {n: shape for n, (shape, _) in other.items()})
        return max(abs(a - b) for name, (_, numbers) in self.one.items() for a, b in zip(numbers, other[name][1]))

    def test_one_rank_learns(self):
        self.assertEqual(sorted(self.one_accuracy), list(range(1, EPOCHS + 1)))
        self.assertGreater(self.one_accuracy[EPOCHS], 0.95)
        self.assertTrue(all(math.isfinite(x) for _, numbers in self.one.values() for x in numbers))

    def test_two_ranks_end_where_one_does(self):
        two, accuracy = self.train("two", EPOCHS, ranks=2)
        self.assertEqual(sorted(accuracy), list(range(1, EPOCHS + 1)))
        self.assertLess(self.largest_difference(two), TOLERANCE)
        self.assertAlmostEqual(accuracy[EPOCHS], self.one_accuracy[EPOCHS], delta=0.01)

    def test_three_ranks_with_unequal_shares_end_where_one_does(self):
        three, _ = self.train("three", EPOCHS, ranks=3)
        self.assertLess(self.largest_difference(three), TOLERANCE)

    def test_a_resumed_run_ends_with_the_same_bits(self):
        self.train("again", EPOCHS // 2)
        resumed, accuracy = self.train("again", EPOCHS)
        self.assertEqual(sorted(accuracy), list(range(EPOCHS // 2 + 1, EPOCHS + 1)))
        self.assertEqual(resumed, self.one)

    def test_two_ranks_go_on_from_one(self):
        self.train("grown", EPOCHS // 2)
        resumed, accuracy = self.train("grown", EPOCHS, ranks=2)
        self.assertEqual(sorted(accuracy), list(range(EPOCHS // 2 + 1, EPOCHS + 1)))
        self.assertLess(self.largest_difference(resumed), TOLERANCE)

    def test_missing_data_is_an_error_of_one_line(self):
        done = subprocess.run([self.program, self.dir / "none.csv", self.dir / "x", "1"], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("none.csv", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
