"""A tiny training job through the yoke binary: its spec, its checkpoints, its processes."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

YOKE = os.environ.get("YOKE_BINARY", "")
LIMIT = 60  # seconds for anything to happen
STEPS = 60
# Nothing that the person who runs the tests has set may leak in.
ENVIRONMENT = {k: v for k, v in os.environ.items()
               if not k.startswith(("PET_", "YOKE_", "TORCH", "CUDA_", "OMP_", "XDG_"))}
SHAPE = dict(family="llama", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=256, max_sequence=64)


def spec_text(folder, **changes):
    """TOML. changes: {"data.train": [...], "model": {...}}; JSON's values are TOML's here."""
    tables = {"model": dict(SHAPE),
              "data": dict(train=[f"{folder}/data/*.py"], sequence=32, cache=f"{folder}/cache"),
              "train": dict(steps=STEPS, global_batch=4, micro_batch=1, precision="fp32", threads=1),
              "cluster": dict(per_node=2, device="cpu"),
              "checkpoint": dict(every=5, keep=2),
              "restart": dict(max=3)}
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if name:
            tables[table][name] = value
        else:
            tables[table] = value
    lines = ['name = "tiny"']
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > end:
            return found
        time.sleep(0.001)
    return found


def records(path):
    """A rank's telemetry. What is no JSON is a line that a kill cut."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def checkpoints(run):
    return sorted(os.listdir(run / "checkpoints"))


def weights(folder):
    """The digest of each file with tensors."""
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.safetensors"))}
    assert found, f"{folder} holds no tensors"
    return found


def tree(folder):
    """Every file below a folder with the digest of what it holds."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def processes(mark):
    """pid and command line of the processes that have `mark` in their command line or environment."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            texts = [pathlib.Path("/proc", entry, name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue  # has ended, or is another user's
        if any(mark.encode() in text for text in texts):
            found[int(entry)] = texts[0].replace(b"\0", b" ").decode(errors="replace")
    return found


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="yoke-run-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.started = []
        self.addCleanup(self.kill_started)
        (self.dir / "data").mkdir()
        library = pathlib.Path(os.__file__).parent
        for name in ("abc", "bisect", "base64", "heapq"):
            shutil.copy(library / f"{name}.py", self.dir / "data")
        self.spec = self.write_spec()

    def kill_started(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def write_spec(self, name="spec.toml", **changes):
        path = self.dir / name
        path.write_text(spec_text(self.dir, **changes))
        return path

    def start(self, *arguments):
        process = subprocess.Popen([YOKE, *map(str, arguments)], cwd=self.dir, env=ENVIRONMENT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def yoke(self, *arguments):
        return self.end(self.start(*arguments))

    def start_run(self, name):
        """A run with a folder of its own to keep its runs in; the run folder comes with it, once it is there."""
        runs = self.dir / name
        process = self.start("run", self.spec, "--runs-dir", runs)
        latest = runs / "tiny/latest"
        self.assertTrue(wait_until(lambda: latest.exists() or process.poll() is not None))
        self.assertTrue(latest.exists(), process.poll())
        return process, latest.resolve()

    def assert_nothing_left(self):
        wait_until(lambda: not processes(str(self.dir)))
        self.assertEqual(processes(str(self.dir)), {})


def main():
    """The binary is the first argument, or YOKE_BINARY."""
    global YOKE
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        YOKE = os.path.abspath(sys.argv.pop(1))
    if not YOKE:
        sys.exit("usage: TEST YOKE_BINARY")
    unittest.main(module="__main__")
