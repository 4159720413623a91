#!/usr/bin/env python3
"""Each rule of check_includes.py, broken once in a small tree, must be found, and nothing else."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_includes

SCRIPT = pathlib.Path(check_includes.__file__)
ROOMS = SCRIPT.with_name("rooms.txt").read_text(encoding="utf-8")
GOOD = {
    "src/core/base/size.h": "// A size.\n#pragma once\n\ninline int size() { return 1; }\n",
    "src/core/spec/model.h": '// A model.\n#pragma once\n\n#include "core/base/size.h"\n\nint parameters();\n',
    "src/core/spec/model.cc": '#include "core/spec/model.h"\n\n#include <vector>\n\nint parameters() { return size(); }\n',
    "src/core/spec/model_test.cc": '#include <gtest/gtest.h>\n\n#include "core/spec/model.h"\n',
    "src/train/comm/group.h": '// A group.\n#pragma once\n\n#include <c10/util/intrusive_ptr.h>\n',
    "src/train/loop/loop.cc": '#include <torch/torch.h>\n\n#include "os/file.h"\n#include "train/optim/adamw.h"\n',
    "src/ops/doctor/gpus.cc": '#include "core/plan/plan.h"\n#include "ops/gpu/gpu.h"\n',
    "src/apps/worker/main.cc": '#include "os/file.h"\n#include "train/loop/loop.h"\n',
    "include/yoke/train.h": '// The library.\n#pragma once\n\n#include "train/loop/loop.h"\n',
}


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(GOOD)

    def write(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def found(self, files):
        self.write(files)
        return check_includes.check(self.root, check_includes.Table(ROOMS))

    def expect(self, files, *violations):
        """Exactly these, each given as (start, word of the rule)."""
        found = self.found(files)
        self.assertEqual(len(found), len(violations), found)
        for line, (start, word) in zip(found, violations):
            self.assertTrue(line.startswith(start + ": "), line)
            self.assertIn(word, line)


class Rules(Tree):
    def test_a_good_tree_has_no_violation(self):
        self.expect({})

    def test_arrows_that_the_table_lacks(self):
        for source, target in [
            ("core/base", "core/spec"), ("core/spec", "core/plan"), ("core/plan", "core/cost"), ("core/report", "core/spec"),
            ("core/telemetry", "os"), ("os", "core/spec"), ("os", "ops/gpu"), ("ops/launch", "ops/gpu"),
            ("ops/gpu", "ops/doctor"), ("ops/launch", "train/loop"), ("train/comm", "ops/gpu"), ("train/comm", "core/plan"),
            ("train/nn", "train/comm"), ("train/data", "train/checkpoint"), ("train/parallel", "train/nn"),
            ("train/optim", "train/nn"), ("train/optim", "train/loop"), ("apps/yoke", "train/data"),
            ("apps/worker", "ops/gpu"), ("core/base", "apps/yoke"), ("include/yoke", "ops/gpu"),
        ]:
            with self.subTest(source=source, target=target):
                folder = source if source.startswith("include/") else "src/" + source
                name = f"{folder}/wrong.cc"
                self.expect({name: f'#include <vector>\n#include "{target}/thing.h"\n'},
                            (name + ":2", f"{source} may not include {target}"))
                (self.root / name).unlink()

    def test_angle_brackets_do_not_hide_a_room(self):
        self.expect({"src/os/wrong.cc": "#include <core/plan/plan.h>\n"}, ("src/os/wrong.cc:1", "os may not include core/plan"))

    def test_public_headers_are_a_room_too(self):
        self.expect({"src/os/wrong.cc": "#include <yoke/train.h>\n"}, ("src/os/wrong.cc:1", "os may not include include/yoke"))

    def test_libtorch_outside_its_rooms(self):
        for room in ("core/base", "os", "ops/gpu", "train/data", "train/checkpoint", "apps/yoke"):
            for header in ("torch/torch.h", "ATen/ATen.h", "c10/core/Device.h"):
                with self.subTest(room=room, header=header):
                    self.expect({f"src/{room}/wrong.cc": f"#include <{header}>\n"},
                                (f"src/{room}/wrong.cc:1", header.split("/")[0] + "/ may be included only in"))
            (self.root / f"src/{room}/wrong.cc").unlink()

    def test_quoted_includes_are_written_from_src(self):
        self.expect({"src/os/wrong.cc": '#include "file.h"\n#  include "../os/file.h"\n'},
                    ("src/os/wrong.cc:1", "write it from src/"), ("src/os/wrong.cc:2", "write it from src/"))

    def test_a_folder_that_is_no_room(self):
        self.expect({"src/misc/thing.cc": "", "src/core/thing.h": "// A thing.\n#pragma once\n"},
                    ("src/core/thing.h:1", "in no room"), ("src/misc/thing.cc:1", "in no room"))

    def test_own_header_first(self):
        text = '#include <vector>\n#include "core/spec/model.h"\n'
        self.expect({"src/core/spec/model.cc": text}, ("src/core/spec/model.cc:1", '"core/spec/model.h"'))
        self.expect({"src/core/spec/model.cc": "int parameters();\n"}, ("src/core/spec/model.cc:1", '"core/spec/model.h"'))

    def test_header_form(self):
        self.expect({"src/core/base/a.h": "// A.\n\nint a();\n"}, ("src/core/base/a.h:1", "#pragma once"))
        self.expect({"src/core/base/a.h": "#pragma once\n// A.\n"}, ("src/core/base/a.h:1", "opens with a comment"))
        self.expect({"src/core/base/a.h": "// Never `using namespace`.\n#pragma once\n#include <string>\nusing  namespace std;\n"},
                    ("src/core/base/a.h:4", "using namespace"))

    def test_long_file(self):
        self.expect({"src/os/long.cc": "\n" * 800})
        self.expect({"src/os/long.cc": "\n" * 801}, ("src/os/long.cc:801", "more than 800"))

    def test_header_without_source_compiles_alone(self):
        broken = "// A list.\n#pragma once\n\nstd::vector<int> list();\n"
        self.expect({"src/core/base/list.h": broken}, ("src/core/base/list.h:1", "does not compile alone"))
        # With a .cc, the .cc shows it; in a room of libtorch only its build can.
        self.expect({"src/core/base/list.cc": '#include "core/base/list.h"\n', "src/train/nn/list.h": broken})


class TableTest(unittest.TestCase):
    def test_mistakes_in_the_table(self):
        for text in ("core/base: core/bass\n", "core/base\n", "os:\nos:\n", "os:\n<torch/>: train/nn\n", "os: nothing/*\n"):
            with self.subTest(text=text), self.assertRaises(check_includes.TableError):
                check_includes.Table(text)


class Program(Tree):
    def run_script(self, *more):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), "--root", str(self.root), *more], capture_output=True, text=True)

    def test_exit_codes(self):
        self.assertEqual(self.run_script().returncode, 0)
        self.write({"src/os/wrong.cc": '#include "ops/gpu/gpu.h"\n'})
        done = self.run_script()
        self.assertEqual((done.returncode, done.stdout), (1, "src/os/wrong.cc:1: os may not include ops/gpu\n"))
        self.write({"table.txt": "os: ops\n"})
        done = self.run_script("--table", str(self.root / "table.txt"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("there is no room ops", done.stderr)


if __name__ == "__main__":
    unittest.main()
