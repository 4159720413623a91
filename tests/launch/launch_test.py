"""yoke launch and yoke run from outside: what a user, a scheduler and a careless `kill -9` see."""
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

from helpers import YOKE, Case, alive, wait_until

# A rank that leaves two daemons (forked twice, sessions of their own; one without environment), then waits.
DAEMONS = """
(/usr/bin/setsid sh -c 'echo $$ > marked.'$RANK'; exec sleep 1000' </dev/null >/dev/null 2>&1 &)
(env -i /usr/bin/setsid /bin/sh -c 'echo $$ > bare.'$RANK'; exec sleep 1000' </dev/null >/dev/null 2>&1 &)
echo $$ > rank.$RANK
"""
FILES = [f"{name}.{rank}" for name in ("marked", "bare", "rank") for rank in (0, 1)]


class CommandLine(Case):
    def test_version_and_help(self):
        self.assertRegex(self.yoke("--version").stdout, r"^yoke \d+\.\d+\.\d+\n$")
        for arguments in ([], ["run"], ["launch"], ["report"]):
            result = self.yoke(*arguments, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertTrue(result.stdout.startswith("Examples:\n  yoke "), result.stdout)

    def test_mistakes(self):
        for arguments, error, hint in [
            (["lanch"], "error: unknown command lanch", "hint: did you mean launch?"),
            (["launch", "--max-restart", "2", "--", "true"], "error: unknown flag --max-restart", "hint: did you mean --max-restarts?"),
            (["launch"], "error: no program to launch", "hint: "),
            (["launch", "--nnodes", "2", "--", "true"], "error: --nnodes is 2", "hint: use --nnodes 1"),
            (["launch", "--nproc-per-node", "many", "--", "true"], "error: --nproc-per-node is many", "hint: "),
            (["launch", "--max-restarts", "x", "--", "true"], "error: ", "hint: see yoke launch --help"),
            (["run"], "error: SPEC", "hint: see yoke run --help"),
        ]:
            result = self.yoke(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            lines = result.stderr.splitlines()
            self.assertEqual(len(lines), 2, result.stderr)
            self.assertTrue(lines[0].startswith(error), result.stderr)
            self.assertTrue(lines[1].startswith(hint), result.stderr)
            self.assertEqual(result.stdout, "")

    def test_program_that_is_not_there(self):
        result = self.yoke("launch", "--", "no-such-program")
        self.assertEqual(result.returncode, 3)
        self.assertIn("error: cannot start no-such-program: No such file or directory\n", result.stderr)


class Launch(Case):
    def test_ways_to_name_the_program(self):
        self.script("show.py", "import sys, os; print('python', *sys.argv[1:], os.environ['RANK'])")
        self.script("show.sh", "#!/bin/sh\necho shell $*\n")
        self.script("interpreter", "#!/bin/sh\necho interpreter $*\n")
        for arguments, expected in [
            (["show.py", "--nproc-per-node", "3"], "python --nproc-per-node 3 0"),
            (["--nproc_per_node=1", "show.py"], "python 0"),
            (["-m", "show", "-x"], "python -x 0"),
            (["./show.sh", "a", "--", "b"], "shell a -- b"),
            (["--", "./show.sh", "-m"], "shell -m"),
            (["--no-python", "./show.sh"], "shell"),
        ]:
            result = self.yoke("launch", *arguments)
            self.assertEqual((result.returncode, result.stdout), (0, f"[rank 0] {expected}\n"), (arguments, result.stderr))
        result = self.yoke("launch", "show.py", env={"PYTHON_EXEC": "./interpreter"})
        self.assertEqual(result.stdout, "[rank 0] interpreter show.py\n")

    def test_environment(self):
        result = self.yoke("launch", "--nproc-per-node", "2", "--role", "r", "--max-restarts", "4", "--master-port", "1234",
                           "--rdzv-id", "job", "--local-ranks-filter", "1", "--", "env")
        seen = dict(line.removeprefix("[rank 1] ").split("=", 1) for line in result.stdout.splitlines())
        expected = dict(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0", GROUP_WORLD_SIZE="1",
                        ROLE_RANK="1", ROLE_WORLD_SIZE="2", ROLE_NAME="r", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234",
                        TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="4", TORCHELASTIC_RUN_ID="job",
                        TORCHELASTIC_USE_AGENT_STORE="False", TORCH_NCCL_ASYNC_ERROR_HANDLING="1", OMP_NUM_THREADS="1")
        self.assertEqual({name: seen.get(name) for name in expected}, expected)
        self.assertIn("TORCHELASTIC_ERROR_FILE", seen)

    def test_pet_variables_are_defaults(self):
        env = {"PET_NPROC_PER_NODE": "2", "PET_NO_PYTHON": "1", "PET_NNODES": "1:1"}
        self.assertEqual(len(self.yoke("launch", "echo", env=env).stdout.splitlines()), 2)
        self.assertEqual(len(self.yoke("launch", "--nproc-per-node", "3", "echo", env=env).stdout.splitlines()), 3)
        self.assertEqual(self.yoke("launch", "echo", env={"PET_NNODES": "2"}).returncode, 2)

    def test_rendezvous_flags_are_noted(self):
        result = self.yoke("launch", "--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint", "localhost:0", "--monitor-interval", "5",
                           "--", "true")
        self.assertEqual((result.returncode, result.stderr),
                         (0, "note: --rdzv-backend, --rdzv-endpoint: not needed on one node\n"))

    def test_failure_is_explained(self):
        result = self.yoke("launch", "--nproc-per-node", "2", "--", "sh", "-c",
                           "[ $RANK = 0 ] && exec sleep 1000; echo the reason >&2; exit 3")
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr, r"(?s)\[rank 1\] the reason\nwarning: rank 1 \(pid \d+\) exited with code 3; stopping.*"
                                        r"The last lines of rank 1:\n  the reason\nerror: rank 1 \(pid \d+\) exited with code 3\n$")
        result = self.yoke("launch", "--", "sh", "-c", "kill -SEGV $$")
        self.assertEqual(result.returncode, 128 + signal.SIGSEGV)
        self.assertIn("was killed by SIGSEGV", result.stderr)

    def test_restart_and_logs(self):
        result = self.yoke("launch", "--nproc-per-node", "2", "--max-restarts", "2", "--log-dir", "logs", "--redirects", "0:1", "--",
                           "sh", "-c", "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 1")
        self.assertEqual(result.returncode, 0)
        self.assertIn("note: restart 1 of 2\n", result.stderr)
        self.assertNotIn("[rank 0]", result.stdout)
        self.assertIn("[rank 1] attempt 1\n", result.stdout)
        log = (self.dir / "logs/rank-00000.log").read_text()
        self.assertRegex(log, r"^=== attempt 0, .* ===\n(attempt 0\n)?=== attempt 1, .* ===\nattempt 1\n$")

    def test_no_files_without_log_dir(self):
        self.yoke("launch", "--", "echo")
        self.assertEqual(os.listdir(self.dir) + os.listdir(self.tmp), [])

    def test_signals(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            process = self.start("launch", "--nproc-per-node", "2", "--max-restarts", "3", "--", "sh", "-c",
                                 f"trap 'echo saved > saved.$RANK; exit 0' INT TERM HUP; echo > ready.$RANK; while :; do sleep 0.01; done")
            self.wait_for("ready.0", "ready.1")
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, code, err)
            self.wait_for("saved.0", "saved.1")
            for name in ("ready", "saved"):
                for rank in (0, 1):
                    (self.dir / f"{name}.{rank}").unlink()

    def test_shutdown_timeout(self):
        process = self.start("launch", "--shutdown-timeout", "0.1", "--", "sh", "-c",
                             "trap '' TERM; echo $$ > ready; while :; do sleep 0.01; done")
        pids = self.wait_for("ready")
        process.terminate()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)
        self.assert_all_gone(pids)

    def test_hang_up_that_nohup_ignores(self):
        process = self.start("launch", "--", "sh", "-c", "echo > ready; until [ -e go ]; do sleep 0.01; done",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for("ready")
        process.send_signal(signal.SIGHUP)
        (self.dir / "go").touch()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_parent_that_ignores_children(self):
        result = self.yoke("launch", "--nproc-per-node", "2", "--", "sh", "-c", "exit 4",
                           preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 4)


class NothingStaysBehind(Case):
    def launch_daemons(self, then="exec sleep 1000", *flags):
        self.script("rank.sh", "#!/bin/sh\n" + DAEMONS + then)
        return self.start("launch", "--nproc-per-node", "2", *flags, "--", "./rank.sh")

    def test_kill_9(self):
        process = self.launch_daemons()
        pids = self.wait_for(*FILES)
        self.assertTrue(all(alive(pid) for pid in pids))
        process.kill()
        self.assert_all_gone(pids)
        process.communicate(timeout=60)  # no process holds the pipes
        self.assertTrue(wait_until(lambda: not os.listdir(self.tmp)), "a temporary folder is left")

    def test_normal_end(self):
        process = self.launch_daemons("until [ -s marked.$RANK ] && [ -s bare.$RANK ]; do sleep 0.01; done")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertFalse([pid for pid in self.wait_for(*FILES) if alive(pid)])

    def test_interrupt(self):
        process = self.launch_daemons()
        pids = self.wait_for(*FILES)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertFalse([pid for pid in pids if alive(pid)])

    def test_kill_9_of_an_outer_launch(self):
        self.script("rank.sh", "#!/bin/sh\n" + DAEMONS + "exec sleep 1000")
        process = self.start("launch", "--", YOKE, "launch", "--nproc-per-node", "2", "--", "./rank.sh")
        pids = self.wait_for(*FILES)
        process.kill()
        self.assert_all_gone(pids)
        self.assertTrue(wait_until(lambda: not any(self.tmp.iterdir())), list(self.tmp.iterdir()))


# Stands in for the engine: writes telemetry as rank 0 does; its behaviour comes from $FAKE.
WORKER = """#!/usr/bin/env python3
import json, os, sys, time
run_dir, rank, attempt = sys.argv[sys.argv.index("--run-dir") + 1], int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert os.environ["YOKE_RUN_DIR"] == run_dir and json.load(open(run_dir + "/run.json"))["schema"] == 1
print("step text of the log")
print("a warning", file=sys.stderr)
def say(kind, **fields):
    if rank == 0:
        with open(run_dir + "/events/rank-00000.jsonl", "a") as events:
            events.write(json.dumps({"schema": 1, "time": time.time(), "rank": rank, "kind": kind, **fields}) + "\\n")
say("start", world_size=int(os.environ["WORLD_SIZE"]), parameters=1, device="cpu", host="h", pid=os.getpid(), attempt=attempt,
    first_step=0, versions={})
for step in range(3):
    say("step", step=step, loss=2.5 - step, grad_norm=1.0, learning_rate=0.001, tokens=64, seconds={"total": 0.01}, memory={}, sent_bytes={})
if os.environ.get("FAKE") == "fail" and rank == 1 and attempt < 2:
    os._exit(17)
open(f"{run_dir}/threads-{os.environ.get('YOKE_THREAD_RANKS')}", "w")
say("end", step=3, outcome="done")
"""
SPEC = """name = "t"
[model]
preset = "llama-10m"
[data]
train = ["x.txt"]
[train]
steps = 3
global_batch = 8
[cluster]
per_node = 2
device = "cpu"
"""


class Run(Case):
    def setUp(self):
        super().setUp()
        (self.dir / "t.toml").write_text(SPEC)
        (self.dir / "bin").mkdir()
        self.tool = shutil.copy(YOKE, self.dir / "bin/yoke")

    def run_it(self, *arguments, worker=True, **options):
        if worker:
            self.script("bin/yoke-worker", WORKER)
        return self.yoke("run", *arguments, yoke=self.tool, **options)

    def test_dry_run(self):
        result = self.run_it("t.toml", "--dry-run", "--set", "train.steps=7", worker=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("7 steps", result.stdout)
        self.assertIn("a rank, predicted", result.stdout)
        self.assertFalse((self.dir / "runs").exists())
        document = json.loads(self.run_it("t.toml", "--dry-run", "--json", worker=False).stdout)
        self.assertEqual(document["plan"]["layout"]["data"], 2)
        self.assertEqual(document["run"]["spec"]["train"]["steps"], 3)

    def test_no_engine(self):
        result = self.run_it("t.toml", worker=False)
        self.assertEqual(result.returncode, 3)
        self.assertIn("hint: make build", result.stderr)
        self.assertFalse((self.dir / "runs").exists())

    def test_mistakes_in_the_spec(self):
        result = self.run_it("t.toml", "--set", "train.step=7")
        self.assertEqual(result.returncode, 2)
        self.assertIn("train.steps", result.stderr)
        self.assertEqual(self.run_it("absent.toml").returncode, 3)

    def test_run_folder_progress_and_report(self):
        result = self.run_it("t.toml")
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = self.dir / "runs/t/latest"
        for name in ("run.json", "plan.json", "report.html", "report.json", "logs/rank-00001.log", "events/rank-00000.jsonl"):
            self.assertTrue((folder / name).is_file(), name)
        self.assertIn("step: 3/3  loss: 0.5", result.stderr)
        self.assertIn("[rank 1] a warning\n", result.stderr)
        self.assertNotIn("step text", result.stdout + result.stderr)
        self.assertIn("step text", (folder / "logs/rank-00000.log").read_text())
        self.assertNotEqual(result.stdout, "")
        self.assertTrue((folder / "threads-None").exists())

    def test_quiet_and_json(self):
        result = self.run_it("t.toml", "--quiet", "--json")
        self.assertNotIn("step:", result.stderr)
        self.assertIn("schema", json.loads(result.stdout))

    def test_threads(self):
        self.assertEqual(self.run_it("t.toml", "--set", "cluster.mode=threads").returncode, 0)
        self.assertTrue((self.dir / "runs/t/latest/threads-2").exists())
        self.assertFalse((self.dir / "runs/t/latest/logs/rank-00001.log").exists())

    def test_restarts(self):
        result = self.run_it("t.toml", env={"FAKE": "fail"})
        self.assertEqual(result.returncode, 0, result.stderr)
        records = [json.loads(line) for line in (self.dir / "runs/t/latest/events/launcher.jsonl").read_text().splitlines()]
        self.assertEqual([(r["kind"], r["rank"], r["attempt"]) for r in records], [("restart", -1, 1), ("restart", -1, 2)])
        self.assertRegex(records[0]["reason"], r"^rank 1 \(pid \d+\) exited with code 17$")

    def test_failure_returns_its_code(self):
        result = self.run_it("t.toml", "--set", "restart.max=1", env={"FAKE": "fail"})
        self.assertEqual(result.returncode, 17)
        self.assertRegex(result.stderr, r"error: rank 1 \(pid \d+\) exited with code 17\nhint: .*logs/rank-00001.log\n$")
        self.assertTrue((self.dir / "runs/t/latest/report.json").exists())

    def test_resume(self):
        self.assertEqual(self.run_it("t.toml").returncode, 0)
        first = os.readlink(self.dir / "runs/t/latest")
        result = self.run_it("--resume", "runs/t/latest")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(os.readlink(self.dir / "runs/t/latest"), first)
        self.assertIn("=== attempt 0, ", (self.dir / "runs/t" / first / "logs/rank-00000.log").read_text())
        self.assertEqual(self.run_it("t.toml", "--resume", "runs/t/latest").returncode, 2)


if __name__ == "__main__":
    unittest.main()
