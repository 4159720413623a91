"""messages_test.py YOKE_BINARY: what `yoke run` tells a person when training does not go as wished."""
import json
import os
import re
import signal
import subprocess

import job
from job import STEPS, Case, records, wait_until


def errors(result):
    return re.findall(r"(?m)^error: (.*)$", result.stderr)


class Skipped(Case):
    def test_all_steps_overflow(self):
        result = self.yoke("run", self.spec, "--set", "train.steps=5", "--set", "train.precision=fp16",
                           "--set", "train.loss_scale.initial=16777216")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"(?m)^warning: 5 of 5 steps were skipped .*fp16: nothing was learned; lower train\.loss_scale")
        self.assertIn("scale: 1048576 ", result.stderr)
        self.assertIn("\n  skipped      5 of 5 steps: their gradients overflowed in fp16\n", result.stdout)
        report = json.loads((self.dir / "runs/tiny/latest/report.json").read_text())
        self.assertEqual(report["steps_skipped"], 5)
        self.assertEqual([m["kind"] for m in report["messages"]], ["warning"])

    def test_no_step_overflows(self):
        result = self.yoke("run", self.spec, "--set", "train.steps=5", "--set", "train.precision=fp16")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("skipped", result.stderr + result.stdout)


class Memory(Case):
    def limited(self, kib, *arguments):
        """With `ulimit -d`."""
        return subprocess.run(["sh", "-c", f"ulimit -d {kib}; exec \"$@\"", "sh", job.YOKE, "run", self.spec, *arguments],
                              cwd=self.dir, env=job.ENVIRONMENT, text=True, capture_output=True, timeout=job.LIMIT)

    def test_too_little_to_start(self):
        # Where it fails depends on the machine: while libtorch is loaded, or at a thread of a store.
        for kib in (20_000, 40_000, 60_000):
            result = self.limited(kib)
            if result.returncode == 0 and kib > 20_000:
                continue
            with self.subTest(kib):
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(len(errors(result)), 1, result.stderr)
                self.assertRegex(errors(result)[0], r"(out of memory: |the system refused a thread.*; )ulimit -d is \d")
                self.assertNotIn("note: restart", result.stderr)

    def test_too_little_for_the_activations(self):
        result = self.limited(200_000, "--set", "cluster.per_node=1", "--set", "model.hidden=256", "--set", "model.ffn=1024",
                              "--set", "train.global_batch=512", "--set", "train.micro_batch=512")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(len(errors(result)), 1, result.stderr)
        self.assertRegex(errors(result)[0], r"^out of memory: ulimit -d is 195 MiB, and the plan predicted \d+ MiB")
        self.assertRegex(result.stderr, r"(?m)^hint: .*train\.micro_batch")


class Stopped(Case):
    def test_a_rank_is_stopped(self):
        self.spec = self.write_spec(train=dict(steps=1_000_000, global_batch=4, micro_batch=1, precision="fp32", threads=1,
                                               collective_timeout=2),
                                    checkpoint=dict(every=0), restart=dict(max=1, grace=1))
        process, run = self.start_run("runs")
        events = run / "events/rank-00001.jsonl"
        wait_until(lambda: any(r["kind"] == "step" for r in records(events)) or process.poll() is not None)
        pid = next(r["pid"] for r in records(events) if r["kind"] == "start")
        os.kill(pid, signal.SIGSTOP)
        self.assertTrue(wait_until(lambda: records(run / "events/launcher.jsonl") or process.poll() is not None))
        process.send_signal(signal.SIGTERM)
        result = self.end(process)
        self.assertRegex(result.stderr, rf"\nwarning: rank 1 \(pid {pid}\) is stopped by a signal.*kill -CONT {pid} ")
        self.assertRegex(result.stderr, r"\nwarning: rank 0 .* exited with code 4: .*absent ranks: 1 \(stopped by a signal\)\n")
        self.assertIn("\nnote: rank 1 is still stopped; it is killed, and all ranks start again\n", result.stderr)
        self.assertIn("\nnote: restart 1 of 1, from the start\n", result.stderr)
        self.assertIn("absent ranks: 1 (stopped", records(run / "events/launcher.jsonl")[0]["reason"])
        self.assert_nothing_left()


class Resume(Case):
    def setUp(self):
        super().setUp()
        process, self.run_dir = self.start_run("first")
        self.assertEqual(self.end(process).returncode, 0)
        self.newest = self.run_dir / f"checkpoints/step-{STEPS:08}"

    def resumed(self, folder, *sets):
        flags = [word for one in (f"checkpoint.resume={folder}", *sets) for word in ("--set", one)]
        return self.yoke("run", self.spec, *flags)

    def test_what_a_restart_cannot_cure(self):
        for folder, sets, what, hint in [
            (self.run_dir / "checkpoints", (), "no checkpoint: it holds checkpoints", f"for example {self.newest}"),
            (self.newest, ("model.ffn=96",), "has the shape", "written for this model"),
        ]:
            result = self.resumed(folder, "train.steps=70", *sets)
            with self.subTest(what):
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertEqual(len(errors(result)), 1, result.stderr)
                self.assertIn(what, errors(result)[0])
                self.assertRegex(result.stderr, f"(?m)^hint: .*{re.escape(str(hint))}")
                self.assertNotIn("note: restart", result.stderr)
                self.assertIn("note: not started again", result.stderr)

    def test_parameters_that_were_frozen(self):
        self.assertEqual(self.yoke("run", self.spec, "--set", 'train.freeze=["model.layers.0.*"]').returncode, 0)
        frozen = (self.dir / "runs/tiny/latest").resolve() / self.newest.relative_to(self.run_dir)
        result = self.resumed(frozen, "train.steps=70")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"\nerror: .* holds no tensor model\.layers\.0.*\nhint: .*train\.freeze")

    def test_nothing_to_do(self):
        result = self.resumed(self.newest, "train.steps=10")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"\nwarning: nothing to do: {self.newest} is at step {STEPS}, and train.steps is 10; ", result.stderr)
        self.assertNotIn("going on", result.stderr)
        self.assertIn("done, 60 of 10 steps", result.stdout)

    def test_own_checkpoints_go_before_the_one_it_began_with(self):
        self.assertEqual(self.resumed(self.newest, "train.steps=65").returncode, 0)
        result = self.yoke("run", "--resume", "runs/tiny/latest")
        self.assertRegex(result.stderr, r"nothing to do: .*step-00000065 is at step 65")

    def test_a_resume_is_no_restart(self):
        result = self.yoke("run", "--resume", self.run_dir)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^tiny: done, 60 of 60 steps in .*, resumed 1 time\n")
        self.assertIn("\n  resumed      after step 60: yoke run --resume (0 steps repeated)\n", result.stdout)
        self.assertNotIn("  restart", result.stdout)


class Shares(Case):
    def test_parts_are_no_more_than_the_step(self):
        self.assertEqual(self.yoke("run", self.spec, "--set", "parallel.zero=3").returncode, 0)
        for rank in range(2):
            for record in records(self.dir / f"runs/tiny/latest/events/rank-{rank:05}.jsonl"):
                if record["kind"] == "step":
                    total = record["seconds"].pop("total")
                    self.assertLessEqual(sum(record["seconds"].values()), total * 1.000001, record)


if __name__ == "__main__":
    job.main()
