"""A process that has imported what tests need from elsewhere, and forks one for each run of pytest.

Half of what a short run costs is to import pytest, botocore and others; here that happens once.
Nothing of the tree is imported before the fork, so that each run has the modules of its day.

It reads lines of JSON, ``{"arguments": [...], "output": path}``, and answers each with two: the
process, which leads a group of its own, and its exit status once it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import suppress

import pytest

OURS = ("cachetier", "tests")  # cachetier_client, too


def _import_others() -> None:
    """Import what the tree's fixtures import, but nothing of the tree."""
    names, told = os.pipe()
    child = os.fork()
    if not child:
        with suppress(Exception):
            importlib.import_module("tests.conftest")
        with open(told, "w", encoding="utf-8") as page:
            page.write("\n".join(list(sys.modules)))
        os._exit(0)
    os.close(told)
    with open(names, encoding="utf-8") as page:
        others = [name for name in page.read().split() if not name.startswith(OURS)]
    os.waitpid(child, 0)
    for name in others:
        with suppress(Exception):
            importlib.import_module(name)


def _run(arguments: list[str], output: str) -> int:
    """Run pytest in a process of its own, whose id is told at once; return its exit status."""
    child = os.fork()
    if not child:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    _import_others()
    for line in sys.stdin:
        run = json.loads(line)
        print(_run(run["arguments"], run["output"]), flush=True)


if __name__ == "__main__":
    main()
