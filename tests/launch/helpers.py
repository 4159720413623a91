"""Running the yoke binary, and looking at what it left behind."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

YOKE = os.environ["YOKE_BINARY"]
LIMIT = 60  # seconds for anything to happen
# Nothing that the person who runs the tests has set may leak in.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "YOKE_", "TORCH", "CUDA_", "OMP_"))}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="yoke-test-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="yoke-test-tmp-"))
        self.addCleanup(shutil.rmtree, self.tmp)
        self.started = []
        self.addCleanup(self.kill_started)

    def kill_started(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, *arguments, yoke=YOKE, env=None, **options):
        process = subprocess.Popen([yoke, *map(str, arguments)], cwd=self.dir, env={**ENVIRONMENT, "TMPDIR": str(self.tmp), **(env or {})}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.started.append(process)
        return process

    def yoke(self, *arguments, **options):
        """Runs to the end; the result has returncode, stdout, stderr."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def script(self, name, text):
        path = self.dir / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def wait_for(self, *names):
        """The texts of files that other processes write, each a whole line."""
        paths = [self.dir / name for name in names]
        self.assertTrue(wait_until(lambda: all(p.exists() and p.read_text().endswith("\n") for p in paths)), names)
        return [p.read_text().strip() for p in paths]

    def assert_all_gone(self, pids):
        for pid in pids:
            self.assertTrue(wait_until(lambda: not alive(pid)), f"process {pid} is still there")
