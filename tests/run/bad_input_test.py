"""bad_input_test.py YOKE_BINARY: bad input is one error with a hint and the right exit code, and loses nothing."""
import ctypes
import json
import re
import struct
import subprocess

import job
from job import Case, checkpoints, tree, weights

USAGE, FAILED, ENVIRONMENT = 2, 1, 3
CLONE_NEWNS = 0x00020000
# Which file, and how much: a checkpoint's, or that of the events.
NO_ROOM = r"/mounted/.*(No space left.* \(the file needs \d+ bytes|could not take \d+ bytes more: No space left)"


def said(kind, stderr):
    """The lines of this kind, whoever said them."""
    return re.findall(rf"(?m)^\s*(?:\[rank \d+\] )?({kind}: .*)$", stderr)


def read_safetensors(path):
    """{name: [type, shape, bytes]}"""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: [entry["dtype"], entry["shape"], data[8 + size:][slice(*entry["data_offsets"])]]
            for name, entry in header.items()}


def safetensors(tensors):
    header, payload = {}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


class BadInput(Case):
    def assert_error(self, result, code, what, hint="."):
        """One error, told once, with one hint. What a restart cannot cure is not tried again."""
        errors, hints = said("error", result.stderr), said("hint", result.stderr)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(errors, result.stderr)
        self.assertRegex(errors[0], what)
        self.assertTrue(hints, result.stderr)
        self.assertRegex(hints[0], hint)
        if code != FAILED:  # which can also be a rank that lost its peer
            self.assertNotIn("note: restart", result.stderr)
        self.assertEqual((len(errors), len(hints)), (1, 1), result.stderr)
        self.assert_nothing_left()

    def assert_bad(self, spec, code, what, hint=".", *flags):
        """The same of a new run, which leaves what it was given as it was."""
        given = tree(self.dir)
        result = self.yoke("run", spec, "--runs-dir", self.dir / "runs", *flags)
        self.assert_error(result, code, what, hint)
        now = tree(self.dir)
        self.assertEqual({name: now.get(name) for name in given}, given)
        self.assertEqual([name for name in now if name.endswith(".tmp")], [])
        return result


class Spec(BadInput):
    def test_mistakes(self):
        for key, what, hint in [("train.stepz", r"spec\.toml:\d+.*train\.stepz", r"did you mean.*steps"),
                                ("data.tokeniser", r"data\.tokeniser", r"did you mean.*tokenizer")]:
            self.assert_bad(self.write_spec(**{key: "60"}), USAGE, what, hint)
        self.assert_bad(self.write_spec(**{"train.steps": "many"}), USAGE, r"spec\.toml:\d+.*train\.steps")
        self.assert_bad(self.write_spec(**{"data.sequence": 65}), USAGE, r"sequence.*65|65.*sequence")
        self.assert_bad(self.write_spec(), USAGE, r"train\.stepz", r"did you mean.*steps", "--set", "train.stepz=1")
        self.spec.write_text("[train\nsteps = 1\n")
        self.assert_bad(self.spec, USAGE, r"spec\.toml:1")
        self.assertFalse((self.dir / "runs").exists())  # a spec that is wrong makes no run

    def test_files_that_are_not_there(self):
        self.assert_bad(self.dir / "absent.toml", ENVIRONMENT, r"absent\.toml: No such file", r"check the path")
        self.assert_bad(self.write_spec(model={"path": f"{self.dir}/absent"}), ENVIRONMENT, r"absent/config\.json")
        self.assertFalse((self.dir / "runs").exists())
        self.assert_error(self.yoke("run", "--resume", self.dir / "absent"), USAGE, r"absent")
        self.assert_error(self.yoke("run", "--resume", self.dir), ENVIRONMENT, r"run\.json")

    def test_run_json(self):
        process, run = self.start_run("runs")
        self.assertEqual(self.end(process).returncode, 0)
        text = (run / "run.json").read_text()
        for bad in (text[:100], text.replace('"steps"', '"stepz"'), "[]", ""):
            (run / "run.json").write_text(bad)
            self.assert_error(self.yoke("run", "--resume", run), USAGE, r"run\.json")


class Data(BadInput):
    def bin(self, name, data):
        (self.dir / name).write_bytes(data)
        return self.write_spec(**{"data.train": [f"{self.dir}/{name}"]})

    def token_file(self):
        """A whole one: what the run has made of the text."""
        self.assertEqual(self.yoke("run", self.spec, "--set", "train.steps=1").returncode, 0)
        files = [p.read_bytes() for p in (self.dir / "cache").rglob("*") if p.is_file()]
        return next(data for data in files if data.startswith(b"YOKETOKN"))

    def test_texts(self):
        self.assert_bad(self.write_spec(**{"data.train": [f"{self.dir}/absent/*.py"]}), USAGE,
                        r"no file matches data\.train = .*absent/\*\.py")
        (self.dir / "short.txt").write_text("thirty-two characters, no more!")
        self.assert_bad(self.write_spec(**{"data.train": [f"{self.dir}/short.txt"]}), USAGE,
                        r"data\.train holds 31 tokens; a sequence of 32 needs 33", r"add data")
        self.assert_bad(self.write_spec(**{"data.tokenizer": f"{self.dir}/absent.json"}), ENVIRONMENT, r"absent\.json")

    def test_token_files(self):
        whole = self.token_file()
        self.assertEqual(self.yoke("run", self.bin("whole.bin", whole), "--set", "train.steps=1").returncode, 0)
        self.assert_bad(self.bin("cut.bin", whole[:-1000]), ENVIRONMENT, r"cut\.bin has \d+ bytes, but its header says")
        self.assert_bad(self.bin("header.bin", whole[:40]), ENVIRONMENT, r"header\.bin has 40 bytes")
        flipped = whole[:500] + bytes([whole[500] ^ 1]) + whole[501:]
        self.assert_bad(self.bin("flipped.bin", flipped), ENVIRONMENT, r"flipped\.bin is damaged")
        self.assert_bad(self.bin("odd.bin", b"\1" * 2001), ENVIRONMENT, r"odd\.bin has 2001 bytes")

    def test_tokens_beyond_the_vocabulary(self):
        tokens = struct.pack("<2000H", *(i % 300 for i in range(2000)))
        self.assert_bad(self.bin("large.bin", tokens), USAGE, r"300 different tokens.* model\.vocab is 256")


class ModelFolder(BadInput):
    def setUp(self):
        super().setUp()
        result = self.yoke("run", self.spec, "--set", "train.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        step = self.dir / "runs/tiny/latest/checkpoints/step-00000001"
        self.model = self.dir / "model"
        self.model.mkdir()
        self.config = json.loads((step / "config.json").read_text())
        self.tensors = {}
        for path in step.glob("model-*.safetensors"):
            self.tensors.update(read_safetensors(path))
        self.write(safetensors(self.tensors))
        self.spec = self.write_spec(model={"path": str(self.model)})

    def write(self, weights_file, config=None):
        (self.model / "model.safetensors").write_bytes(weights_file)
        (self.model / "config.json").write_text(json.dumps(self.config) if config is None else config)

    def test_whole(self):
        result = self.yoke("run", self.spec, "--set", "train.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_weights(self):
        name = "model.norm.weight"
        kind, shape, data = self.tensors[name]
        good = safetensors(self.tensors)
        less = {key: value for key, value in self.tensors.items() if key != name}
        for weights_file, what in [
            (good[:-1000], r"model\.safetensors"),
            (good[:5], r"model\.safetensors has 5 bytes"),
            (b"", r"model\.safetensors has 0 bytes"),
            (struct.pack("<Q", 1 << 60) + good[8:], r"model\.safetensors says that its header has \d+ bytes"),
            (good[:8] + b"?" + good[9:], r"model\.safetensors \(header\)"),
            (good.replace(b'"F32"', b'"F33"', 1), r"model\.safetensors.*F33"),
            (safetensors(less), rf"no tensor {re.escape(name)}"),
            (safetensors({**less, name: [kind, [shape[0] // 2, 2], data]}), rf"{re.escape(name)} has the shape"),
            (safetensors({**self.tensors, "extra.weight": [kind, shape, data]}), r"extra\.weight"),
        ]:
            self.write(weights_file)
            with self.subTest(what):
                self.assert_bad(self.spec, FAILED, what)

    def test_config(self):
        good, text = safetensors(self.tensors), json.dumps(self.config)
        for config in (text[:50], "[]", "", json.dumps({**self.config, "hidden_size": "wide"}),
                       json.dumps({**self.config, "num_key_value_heads": 3}),
                       json.dumps({**self.config, "model_type": "t5"})):
            self.write(good, config)
            with self.subTest(config):
                self.assert_bad(self.spec, USAGE, r"config\.json")


class Checkpoints(BadInput):
    def setUp(self):
        super().setUp()
        process, self.run_dir = self.start_run("runs")
        self.assertEqual(self.end(process).returncode, 0)
        self.folders = [self.run_dir / "checkpoints" / name for name in checkpoints(self.run_dir)]
        self.weights = weights(self.folders[-1])

    @staticmethod
    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def test_the_newest_is_damaged(self):
        # The two tensors' files and the manifest: each makes the checkpoint one that is passed over.
        for name in ("model-00002-of-00002.safetensors", "optimizer-00001-of-00002.safetensors", "manifest.json"):
            self.flip(self.folders[-1] / name)
            result = self.yoke("run", "--resume", self.run_dir)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"going on from step 55: {self.folders[0]}", result.stderr)
            self.assertEqual(weights(self.folders[-1]), self.weights)
            with self.subTest(name):
                passed = re.findall(rf"warning: .*step-00000060 is passed over: .*{re.escape(name)}", result.stderr)
                self.assertEqual(len(passed), 1, result.stderr)  # told once, not by each rank

    def test_all_are_damaged(self):
        # Whoever says --resume has something to lose: a fresh start must be asked for.
        for folder in self.folders:
            self.flip(folder / "model-00001-of-00002.safetensors")
        before = tree(self.run_dir / "checkpoints")
        result = self.yoke("run", "--resume", self.run_dir)
        self.assert_error(result, FAILED, r"step-00000060|checkpoints")
        self.assertEqual(tree(self.run_dir / "checkpoints"), before)


class Disk(BadInput):
    def setUp(self):
        super().setUp()
        # A mount namespace of our own: whatever happens, nobody else sees the mounts and they go away with us.
        if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0 or not self.mount("--make-rprivate", "/"):
            self.skipTest("mounting is not permitted here")
        self.runs = self.dir / "mounted"
        self.runs.mkdir()
        if not self.mount("-t", "tmpfs", "-o", "size=4m", "none", self.runs):
            self.skipTest("mounting is not permitted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.runs], check=True)

    @staticmethod
    def mount(*arguments):
        return subprocess.run(["mount", *map(str, arguments)], stderr=subprocess.DEVNULL).returncode == 0

    def test_read_only(self):
        process, run = self.start_run("mounted")
        self.assertEqual(self.end(process).returncode, 0)
        before = tree(run)
        self.assertTrue(self.mount("-o", "remount,ro", self.runs))
        result = self.yoke("run", self.spec, "--runs-dir", self.runs)
        self.assert_error(result, ENVIRONMENT, r"mounted/tiny.*: Read-only file system", r"--runs-dir|written")
        self.assert_error(self.yoke("run", "--resume", run), ENVIRONMENT, r": Read-only file system", r"written")
        self.assertEqual(tree(run), before)

    def test_full_disk(self):
        process, undisturbed = self.start_run("runs")
        self.assertEqual(self.end(process).returncode, 0)
        self.spec = self.write_spec(**{"checkpoint.keep": 20})  # 12 of 420 KiB: more than there is room for
        process, run = self.start_run("mounted")
        result = self.end(process)
        names = checkpoints(run)
        visible = [name for name in names if not name.startswith(".")]
        self.assertIn("step-00000025", visible)
        self.assertNotIn("step-00000060", visible)
        # With room again the run goes on from the newest, and its end is as if nothing had been.
        self.assertTrue(self.mount("-o", "remount,size=32m", self.runs))
        resumed = self.yoke("run", "--resume", run)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn(f"going on from step {int(visible[-1][5:])}: ", resumed.stderr)
        self.assertEqual(checkpoints(run), [f"step-{step:08}" for step in range(5, 61, 5)])
        self.assertEqual(weights(run / "checkpoints/step-00000060"), weights(undisturbed / "checkpoints/step-00000060"))
        self.assert_error(result, ENVIRONMENT, NO_ROOM, r"free space")

    def test_no_room_for_any_checkpoint(self):
        self.spec = self.write_spec(**{"model.hidden": 256, "model.ffn": 1024})
        process, run = self.start_run("mounted")
        result = self.end(process)
        self.assertEqual([name for name in checkpoints(run) if not name.startswith(".")], [])
        self.assert_error(result, ENVIRONMENT, NO_ROOM, r"free space")


if __name__ == "__main__":
    job.main()
