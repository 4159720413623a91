#!/usr/bin/env python3
"""report_page_test.py YOKE: `yoke report` on a run folder made here, and its page as Chromium sees it."""
import html.parser
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

YOKE = pathlib.Path(sys.argv.pop(1)).resolve()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NAME = "<script>document.title='owned'</script>"
STEPS, FAILED_AT, RESUMED_AT = 3000, 2000, 1900
BROWSER_LIMIT = 180  # seconds

# Shows what the pointer would at the middle of the first chart, and which resources the page fetched.
PROBE = """<script>
const chart = document.querySelector('svg.chart'), place = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent('pointermove', {clientX: place.left + place.width * 0.55, clientY: place.top + 20}));
document.body.dataset.resources = performance.getEntriesByType('resource').length;
</script>"""


def write_run(folder):
    (folder / "events").mkdir(parents=True)
    spec = {"name": NAME, "model": {"preset": "llama-10m"}, "train": {"steps": STEPS, "precision": "fp32"}}
    (folder / "run.json").write_text(json.dumps({"schema": 1, "spec": spec, "origins": {"train.steps": "--set"}}))
    plan = {"layout": {"data": 2}, "memory_bytes": {"parameters": 1 << 20, "total": 3 << 20}}
    (folder / "plan.json").write_text(json.dumps(plan))

    def line(time, rank, kind, **fields):
        return json.dumps({"schema": 1, "time": time, "rank": rank, "kind": kind, **fields}) + "\n"

    def start(time, attempt, first_step):
        return line(time, 0, "start", world_size=2, parameters=10_500_000, device="cpu", host="box", pid=1,
                    attempt=attempt, first_step=first_step, versions={"libtorch": "2.13.0"})

    def step(time, number):
        loss = 40.5 if number == 1234 else 5 - number / 1000
        return line(time, 0, "step", step=number, loss=loss, grad_norm=1.5, learning_rate=1e-3, tokens=512,
                    seconds={"total": 0.5, "forward": 0.125, "backward": 0.25, "communication_exposed": 0.0625},
                    memory={"peak_bytes": 4 << 20, "parameters": 1 << 20}, tokens_per_second=1024)

    with open(folder / "events" / "rank-00000.jsonl", "w", encoding="utf-8") as file:
        file.write(start(1000, 0, 0))
        file.writelines(step(1000 + (n + 1) * 0.5, n) for n in range(FAILED_AT))
        file.write(start(2010, 1, RESUMED_AT))
        for n in range(RESUMED_AT, STEPS):
            file.write(step(2010 + (n - RESUMED_AT + 1) * 0.5, n))
            if (n + 1) % 500 == 0:
                file.write(line(2010 + (n - RESUMED_AT + 1) * 0.5, 0, "validation", step=n, loss=2.25, tokens=64))
        file.write(line(2600, 0, "end", step=STEPS, outcome="done"))
    (folder / "events" / "launcher.jsonl").write_text(line(2003, -1, "restart", attempt=1, reason="rank 1 & <b>died</b>"))


def dump_dom(page):
    """The page's document after its scripts have run. Chromium's processes end with it."""
    with tempfile.TemporaryDirectory() as profile:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   f"--user-data-dir={profile}", "--window-size=1200,900", "--dump-dom", page.as_uri()]
        browser = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return browser.communicate(timeout=BROWSER_LIMIT)[0].decode()
        finally:
            try:
                os.killpg(browser.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            browser.wait()


class Document(html.parser.HTMLParser):
    """All elements' attributes by tag, the text of each, and all text together."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.title, self._open = {}, "", "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.setdefault(tag, []).append(dict(attributes))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._open):
            self.text += data + "\n"
        if self._open[-1:] == ["title"] and "svg" not in self._open:
            self.title = data

    def curve(self, name):
        for path in self.elements["path"]:
            if path.get("data-name") == name:
                numbers = [float(n) for n in path["data-points"].split()]
                return list(zip(numbers[::2], numbers[1::2])), path["d"]
        raise AssertionError(f"no curve {name}")


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.temporary.name)
        write_run(root / "runs" / "tiny" / "1")
        (root / "runs" / "tiny" / "latest").symlink_to("1")
        cls.summary = cls.yoke(root, "report", "runs/tiny")
        cls.json = json.loads(cls.yoke(root, "report", "runs/tiny/1", "--json"))
        cls.path = cls.yoke(root, "report", "tiny", "--open-path").strip()
        cls.source = (root / "runs" / "tiny" / "1" / "report.html").read_text(encoding="utf-8")
        probed = root / "probed.html"
        probed.write_text(cls.source.replace("</body>", PROBE + "</body>"), encoding="utf-8")
        cls.page = Document(dump_dom(probed))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @staticmethod
    def yoke(root, *arguments):
        done = subprocess.run([YOKE, *arguments], cwd=root, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_summary_and_json(self):
        self.assertIn("done, 3,000 of 3,000 steps", self.summary)
        self.assertIn("runs/tiny/latest/report.html", self.summary)
        self.assertEqual(self.json["loss"]["best"], {"step": 3000, "value": 5 - 2.999})
        self.assertEqual(self.json["restarts"][0]["repeated_steps"], FAILED_AT - RESUMED_AT)
        self.assertTrue(os.path.isabs(self.path) and self.path.endswith("/runs/tiny/latest/report.html"))

    def test_a_missing_run_is_a_usage_error(self):
        done = subprocess.run([YOKE, "report", "/no/such/run"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/such/run", done.stderr)

    def test_curves(self):
        points, drawn = self.page.curve("training")
        self.assertLessEqual(len(points), 1000)
        self.assertGreater(len(points), 900)
        self.assertIn((1235.0, 40.5), points, "the spike stays")
        self.assertEqual((points[0], points[-1]), ((1.0, 5.0), (3000.0, 2.001)))
        self.assertRegex(drawn, r"^M[\d.]+ [\d.]+L")
        self.assertEqual(self.page.curve("validation")[0], [(2000.0, 2.25), (2500.0, 2.25), (3000.0, 2.25)])
        self.assertEqual({y for _, y in self.page.curve("gradient norm")[0]}, {1.5})
        self.assertEqual({y for _, y in self.page.curve("tokens/s")[0]}, {1024.0})

    def test_figures(self):
        for text in ("2.0010", "1,024", "not measured", "500 ms", "4.00 MiB", "+33.3%", "exposed communication", "50.0%",
                     "rank 1 & <b>died</b>", "llama-10m", "--set", "2.13.0"):
            self.assertIn(text, self.page.text)
        marks = [path for path in self.page.elements["path"] if path.get("class") == "mark"]
        self.assertEqual(len(marks), 4, "the restart, on each chart")

    def test_the_pointer_shows_values(self):
        self.assertRegex(self.page.text, r"step 1,\d+\ntraining  [\d.]+")

    def test_the_name_is_text(self):
        self.assertIn(NAME, self.page.text)
        self.assertEqual(self.page.title, f"{NAME} \u00b7 done")

    def test_nothing_is_fetched(self):
        self.assertEqual(self.page.elements["body"][0]["data-resources"], "0")
        for tag, elements in Document(self.source).elements.items():
            for attributes in elements:
                self.assertFalse({"src", "href", "srcset", "data", "action"} & set(attributes), f"{tag} {attributes}")
        self.assertNotRegex(self.source, r"@import|url\(|https?:|\bfetch\(|XMLHttpRequest")
        self.assertIn("default-src 'none'", self.source)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: chromium is not installed")
        sys.exit(77)
    unittest.main()
