"""messages_test.py YOKE_BINARY: what `yoke run` tells a person when training does not go as wished."""
import json

import job
from job import Case


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


if __name__ == "__main__":
    job.main()
