"""``make frameworks`` and ``make s3clients``: test each in an environment of its own.

Frameworks, and clients of S3, pin versions that conflict, and weigh gigabytes. Each has a hashed
list of what it needs beside ``.venv``, and an environment under ``build/`` that lies on top of
``.venv``: torch and the client come from there. The tests and the service run in ``.venv``, and
what is tested does in its own environment. What came of it is in ``docs/<kind>-results.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Kind:
    """What is tested: each has a list, and a test module, by its name.

    ``variable`` names the interpreter that the tests are to use.
    """

    name: str
    tests: Path
    variable: str

    @property
    def lists(self) -> Path:
        return ROOT / "requirements" / self.name

    @property
    def results(self) -> Path:
        return ROOT / "docs" / f"{self.name}-results.json"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("frameworks", ROOT / "tests" / "frameworks", "FRAMEWORK_PYTHON"),
        Kind("s3clients", ROOT / "tests" / "integration" / "s3clients", "S3CLIENT_PYTHON"),
    )
}


@dataclass(frozen=True)
class Environment:
    """The virtual environment of one framework, or client."""

    kind: Kind
    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "build" / self.kind.name / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.kind.lists / f"{self.name}.txt"

    @property
    def node_packages(self) -> list[Path]:
        """What npm is to install beside, of a client in JavaScript: its packages and their lock."""
        return sorted((self.kind.lists / self.name).glob("package*.json"))

    @property
    def version(self) -> str:
        """Its version: the first that its list asks for."""
        if self.node_packages:
            wanted = json.loads(self.node_packages[-1].read_text(encoding="utf-8"))["dependencies"]
            return " ".join(next(iter(wanted.items())))
        pin = _PIN.search(self.packages.with_suffix(".in").read_text(encoding="utf-8"))
        assert pin is not None, f"{self.name}.in pins nothing"
        return f"{pin[1]} {pin[2]}"

    def install(self) -> None:
        """Have what the list says; does nothing if it is there.

        Raises:
            subprocess.CalledProcessError: pip, or npm, could not; what it said is in ``stderr``.
        """
        stamp = self.folder / "installed"
        lists = b"".join(each.read_bytes() for each in [self.packages, *self.node_packages])
        wanted = hashlib.sha256(lists).hexdigest()
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return
        # Without a pip and a setuptools of its own: an old one here would hide that of `.venv`,
        # which builds what comes as source.
        _called(sys.executable, "-m", "venv", "--clear", "--without-pip", self.folder)
        below = sysconfig.get_path("purelib")
        own = Path(_called(self.python, "-c", "import site; print(site.getsitepackages()[0])"))
        line = f"import site; site.addsitedir({below!r})\n"
        (own / "zz_below.pth").write_text(line, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        pip += ["install", "--quiet"]
        pip += ["--no-deps", "--require-hashes", "--no-build-isolation", "--ignore-requires-python"]
        _called(*pip, "--requirement", self.packages)
        if self.node_packages:
            for each in self.node_packages:
                shutil.copy(each, self.folder)
            npm = [self.python.with_name("npm"), "--prefix", self.folder, "ci"]
            _called(*npm, "--ignore-scripts", "--no-audit", "--no-fund")
        stamp.write_text(wanted, encoding="utf-8")


def result_of(environment: Environment) -> dict[str, object]:
    """Install it, run its tests, and return the row of the result file."""
    row: dict[str, object] = {
        "version": environment.version,
        "python": ".".join(map(str, sys.version_info[:2])),
    }
    try:
        environment.install()
    except subprocess.CalledProcessError as failed:
        return {**row, "tests": {}, "outcome": "not installed", "reason": reason_of(failed.stderr)}
    report = environment.folder / "tests.xml"
    report.unlink(missing_ok=True)
    tests = environment.kind.tests / f"test_{environment.name}.py"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(tests)]
    variables = {**os.environ, environment.kind.variable: str(environment.python)}
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    if not report.exists():
        reason = f"pytest ended with {done.returncode}"
        return {**row, "tests": {}, "outcome": "failed", "reason": reason}
    counts, reason = _counts(report)
    outcome = "failed" if done.returncode else "passed" if counts["passed"] else "skipped"
    return {**row, "tests": counts, "outcome": outcome, "reason": reason}


def reason_of(said: str) -> str:
    """Return the first line that names an error in words, not by a code of pip's; or the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if re.match(r"(?i)\w*error: \S+ ", line)), lines[-1])


def _counts(report: Path) -> tuple[dict[str, int], str]:
    """Return how the tests ended, and the first line of why one did not pass."""
    suite = next(ET.parse(report).iter("testsuite"))
    of = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = of["failures"] + of["errors"]
    told = [
        (each.get("message") or "").splitlines()[:1]
        for case in suite.iter("testcase")
        for each in case
        if each.tag in ("failure", "error", "skipped")
    ]
    counts = {"passed": of["tests"] - failed - of["skipped"], "failed": failed}
    return {**counts, "skipped": of["skipped"]}, "".join(told[0]) if told else ""


def _called(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@click.command()
@click.option("--only", default="", help="One of them.")
@click.option("--of", default="frameworks", help="frameworks, or s3clients.")
def main(only: str, of: str) -> None:
    """Test every framework, or client of S3, that has a list, or one."""
    kind = KINDS[of]
    names = sorted(path.stem for path in kind.lists.glob("*.txt"))
    if only and only not in names:
        raise click.BadParameter(f"{only!r} is not one of {', '.join(names)}")
    found = json.loads(kind.results.read_text(encoding="utf-8")) if kind.results.exists() else {}
    for name in [only] if only else names:
        click.echo(f"==> {name}")
        found[name] = result_of(Environment(kind, name))
        click.echo(
            f"    {found[name]['version']}: {found[name]['outcome']} {found[name]['reason']}"
        )
        text = json.dumps(dict(sorted(found.items())), indent=2) + "\n"
        kind.results.write_text(text, encoding="utf-8")
    ended = {found[name]["outcome"] for name in ([only] if only else names)}
    if ended & {"failed", "not installed"}:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
