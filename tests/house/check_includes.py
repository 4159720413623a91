#!/usr/bin/env python3
"""Holds the sources under src/ and include/ against the rules of the house, and prints each violation as file:line: rule.

    check_includes.py [--root FOLDER] [--table FILE] [--compiler CXX]

The rules:
  - every #include follows an arrow of the table (rooms.txt); quoted includes are written from src/
  - outside headers that the table reserves (libtorch) stay in their rooms
  - thing.cc includes its own thing.h first, which shows that the header stands alone
  - a header without a .cc, in a room without libtorch, compiles alone
  - a header opens with a comment, has #pragma once and no `using namespace`
  - no file has more than 800 lines
Exit code: 0 none found, 1 violations, 2 the table itself is wrong.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

MAX_LINES = 800
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
HERE = pathlib.Path(__file__).resolve().parent


class TableError(Exception):
    pass


class Table:
    """rooms.txt: `allowed` maps a room to the rooms that it may include, `reserved` a prefix to the rooms that may use it."""

    def __init__(self, text):
        lines = {}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            key, colon, rooms = line.partition(":")
            if not colon or key.strip() in lines:
                raise TableError(f"line {number}: want `room: rooms`, each room once, not `{line}`")
            lines[key.strip()] = (number, rooms.split())
        self.rooms = [key for key in lines if not key.startswith("<")]
        self.allowed = {}
        self.reserved = {}
        for key, (number, names) in lines.items():
            rooms = self._expand(number, names)
            if key.startswith("<"):
                self.reserved.update({prefix.strip("<>"): rooms for prefix in key.split()})
            else:
                self.allowed[key] = rooms | {key}

    def _expand(self, number, names):
        rooms = set()
        for name in names:
            matches = {r for r in self.rooms if r == name or (name.endswith("/*") and r.startswith(name[:-1]))}
            if not matches:
                raise TableError(f"line {number}: there is no room {name}")
            rooms |= matches
        return rooms

    def room_of(self, path):
        """The room that a path, written as in an #include, belongs to; None outside the house."""
        path = "include/" + path if path.startswith("yoke/") else path
        return next((r for r in self.rooms if path.startswith(r + "/")), None)

    def libtorch_free(self, room):
        return not any(room in rooms for rooms in self.reserved.values())


def check_include(table, room, quoted, path):
    """The rule that this #include breaks, or None."""
    for prefix, rooms in table.reserved.items():
        if path.startswith(prefix):
            return None if room in rooms else f"{prefix} may be included only in {', '.join(sorted(rooms))}"
    target = table.room_of(path)
    if target is None:
        return f'"{path}" is in no room: write it from src/, or outside headers as <...>' if quoted else None
    if target not in table.allowed[room]:
        return f"{room} may not include {target}"
    return None


def check_file(table, room, name, path, lines):
    """Violations in one file as (line, rule). `name` is the path as in an #include."""
    found = []
    includes = []
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            includes.append((number, match[2]))
            rule = check_include(table, room, match[1] == '"', match[2])
            if rule:
                found.append((number, rule))
    if len(lines) > MAX_LINES:
        found.append((len(lines), f"{len(lines)} lines, more than {MAX_LINES}"))
    if path.suffix == ".h":
        if not lines or not lines[0].startswith(("//", "/*")):
            found.append((1, "a header opens with a comment: what it is for, and its contract"))
        if not any(line.startswith("#pragma once") for line in lines):
            found.append((1, "a header has #pragma once"))
        for number, line in enumerate(lines, 1):
            if re.search(r"\busing\s+namespace\b", line.split("//")[0]):
                found.append((number, "no `using namespace` in a header"))
    elif path.with_suffix(".h").exists():
        own = name[: -len(".cc")] + ".h"
        if not includes or includes[0][1] != own:
            found.append((includes[0][0] if includes else 1, f'the first #include is "{own}"'))
    return found


def compile_alone(compiler, root, name):
    """The first complaint of the compiler about a header on its own, or None."""
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-I", str(root / "src"), "-x", "c++", "-"],
        input=f'#include "{name}"\n', capture_output=True, text=True)
    if done.returncode == 0:
        return None
    complaints = [line for line in done.stderr.splitlines() if "error:" in line]
    return "does not compile alone: " + (complaints[0] if complaints else done.stderr.strip())


def check(root, table, compiler="g++"):
    """All violations below root, in order, each as `file:line: rule`."""
    found = []
    alone = []
    for base in ("src", "include"):
        for path in sorted((root / base).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            shown = path.relative_to(root).as_posix()
            name = path.relative_to(root / base).as_posix()
            room = table.room_of(name)
            if room is None:
                found.append((shown, 1, "is in no room of the table"))
                continue
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [(shown, number, rule) for number, rule in check_file(table, room, name, path, lines)]
            if path.suffix == ".h" and table.libtorch_free(room) and not path.with_suffix(".cc").exists():
                alone.append((shown, name))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = pool.map(lambda header: compile_alone(compiler, root, header[1]), alone)
        found += [(shown, 1, rule) for (shown, _), rule in zip(alone, complaints) if rule]
    return [f"{shown}:{number}: {rule}" for shown, number, rule in sorted(found)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent)
    parser.add_argument("--table", type=pathlib.Path, default=HERE / "rooms.txt")
    parser.add_argument("--compiler", default="g++")
    args = parser.parse_args()
    try:
        table = Table(args.table.read_text(encoding="utf-8"))
    except TableError as error:
        print(f"{args.table}: {error}", file=sys.stderr)
        return 2
    violations = check(args.root, table, args.compiler)
    print("\n".join(violations) if violations else "every #include follows the table")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
