"""kill_test.py YOKE_BINARY: whatever is killed, training ends with the same bits and leaves no process."""
import os
import random
import signal
import time

import job
from job import STEPS, Case, checkpoints, processes, records, wait_until, weights

KILLS = 20
LAST = f"step-{STEPS:08}"


def reached(run, rank, step):
    """The process of this rank, once it has done that step."""
    pid = None
    for record in records(run / f"events/rank-{rank:05}.jsonl"):
        if record["kind"] == "start":
            pid = record["pid"]
        if record["kind"] == "step" and record["step"] >= step:
            return pid
    return None


def losses(run):
    """The loss of each step, as often as it was done."""
    found = {}
    for record in records(run / "events/rank-00000.jsonl"):
        if record["kind"] == "step":
            found.setdefault(record["step"], set()).add(record["loss"])
    return found


class Kill(Case):
    undisturbed = None  # weights and losses; the same for all tests

    def setUp(self):
        super().setUp()
        if Kill.undisturbed is None:
            process, run = self.start_run("undisturbed")
            result = self.end(process)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("restart", result.stdout)
            Kill.undisturbed = weights(run / "checkpoints" / LAST), losses(run)
        self.weights, self.losses = Kill.undisturbed
        self.assertEqual(sorted(self.losses), list(range(STEPS)))

    def assert_same_end(self, run, said=""):
        # Exactly the two that are kept: no hidden leftovers of the writings that were cut off.
        self.assertEqual(checkpoints(run), [f"step-{STEPS - 5:08}", LAST], said)
        self.assertEqual(weights(run / "checkpoints" / LAST), self.weights, said)
        self.assertEqual(losses(run), self.losses, said)
        self.assert_nothing_left()

    def kill_rank(self, name, rank, step, delay):
        """True if the kill came in time; then all has been checked."""
        process, run = self.start_run(name)
        pid = wait_until(lambda: reached(run, rank, step) or process.poll() is not None)
        hit = pid is not True
        if hit:
            time.sleep(delay)  # only so that the kill does not always come just after a step
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                hit = False
        result = self.end(process)
        said = f"rank {rank} killed after step {step}:\n{result.stderr}"
        self.assertEqual(result.returncode, 0, said)
        hit = hit and "was killed by SIGKILL" in result.stderr
        if hit:
            self.assertRegex(result.stdout, r"^tiny: done, 60 of 60 steps in .*, 1 restart\n")
            self.assertRegex(result.stdout, rf"\n  restart 1 +after step \d+: rank {rank} \(pid {pid}\) was killed")
            self.assertNotRegex(result.stderr, r"(?m)^error:")  # the other rank may say that its peer is gone
            restarts = records(run / "events/launcher.jsonl")
            self.assertEqual([(r["kind"], r["attempt"]) for r in restarts], [("restart", 1)], said)
        self.assert_same_end(run, said)
        return hit

    def test_a_rank_is_killed(self):
        dice = random.Random(20)
        done = tries = 0
        while done < KILLS:
            rank, step, delay = dice.randrange(2), dice.randrange(STEPS - 5), dice.random() * 0.01
            done += self.kill_rank(f"kill-{tries}", rank, step, delay)
            tries += 1
            self.assertLess(tries, 2 * KILLS, "the kills come too late")

    def test_yoke_is_killed(self):
        process, run = self.start_run("killed")
        self.assertTrue(wait_until(lambda: reached(run, 1, 22) or process.poll() is not None))
        workers = processes("yoke-worker")
        process.kill()
        self.end(process)
        self.assertTrue(any(str(self.dir) in command for command in workers.values()), workers)
        self.assert_nothing_left()
        self.assertNotIn(LAST, checkpoints(run))
        result = self.yoke("run", "--resume", run)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"\ngoing on from step \d+: ")
        self.assert_same_end(run)

    def test_yoke_is_told_to_stop(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process, run = self.start_run(number.name)
            self.assertTrue(wait_until(lambda: reached(run, 0, 21) or process.poll() is not None))
            process.send_signal(number)
            result = self.end(process)
            self.assertEqual(result.returncode, 128 + number, result.stderr)
            self.assertNotIn("error:", result.stderr)
            self.assert_nothing_left()
            end = records(run / "events/rank-00000.jsonl")[-1]
            self.assertEqual((end["kind"], end["outcome"]), ("end", "stopped"))
            self.assertLess(end["step"], STEPS)
            self.assertEqual(checkpoints(run)[-1], f"step-{end['step']:08}")
            result = self.yoke("run", "--resume", run)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"\ngoing on from step {end['step']}: ", result.stderr)
            self.assert_same_end(run)


if __name__ == "__main__":
    job.main()
