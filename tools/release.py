"""``make release-check``: a release is built, compared, installed and tried, and left in dist/.

Everything comes out of the tracked files as they are now. Each check says what it did, or raises
with what is wrong.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tools.pages import ROOT
from tools.versions import version

DIST = ROOT / "dist"
WHEELS = ROOT / "deploy" / "wheels"
SECONDS = 600
# What may differ between two machines and must not show: zone, mask, folder, order of hashes.
MACHINES = (
    ("one", {"TZ": "UTC", "PYTHONHASHSEED": "1"}, 0o022),
    ("another/further/down", {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2"}, 0o077),
)


class CheckError(Exception):
    """A release that should not be made; the message says why."""


def ran(*command: str | Path, cwd: Path | None = None, **options: object) -> str:
    """Run a command to its end and return its output.

    Raises:
        CheckError: It failed; with the end of what it said.
    """
    given: dict[str, object] = {"capture_output": True, "text": True, "timeout": SECONDS}
    done = subprocess.run(command, cwd=cwd, check=False, **given | options)  # type: ignore[call-overload]
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"[-3000:]
        raise CheckError(f"{' '.join(map(str, command))}: {done.returncode}\n{said}")
    return str(done.stdout)


# --- the changelog -------------------------------------------------------------------------------


def changelog(_scratch: Path) -> str:
    """Have the changelog as it would be, with every fragment in it."""
    towncrier = ROOT / ".venv" / "release" / "bin" / "towncrier"
    text = ran(towncrier, "build", "--draft", "--version", version(), cwd=ROOT)
    fragments = list((ROOT / "changes").glob("[0-9]*.md"))
    lacking = [
        each.name for each in fragments if each.read_text("utf-8").split("](")[0][:60] not in text
    ]
    if lacking or "](../" in text:
        raise CheckError(f"the changelog lacks {lacking}, or has links from another folder")
    return f"{len(fragments)} fragments make the changelog of {version()}"


# --- what is built -------------------------------------------------------------------------------


def sources(folder: Path) -> tuple[Path, str]:
    """Lay the tracked files, as they are now, into a folder; return it, and the commit's time."""
    tree = ran("git", "stash", "create", cwd=ROOT).strip() or "HEAD"
    when = ran("git", "show", "--no-patch", "--format=%ct", "HEAD", cwd=ROOT).strip()
    packed = subprocess.run(("git", "archive", tree), cwd=ROOT, check=True, capture_output=True)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder, when


def build(folder: Path, out: Path, environment: Mapping[str, str], umask: int) -> dict[str, str]:
    """Build wheel and sdist of both distributions; return the digest of each file."""
    source, when = sources(folder)
    variables = {**os.environ, **environment, "SOURCE_DATE_EPOCH": when}
    for project in (source / "client", source):
        command = (sys.executable, "-m", "hatchling", "build", "--directory", out)
        ran(*command, cwd=project, env=variables, umask=umask)
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in out.iterdir()}


def distributions(scratch: Path) -> str:
    """Build everything twice, and the wheels once more out of the sdists: the same bytes."""
    built = {
        name: build(scratch / name / "source", scratch / name / "dist", environment, umask)
        for name, environment, umask in MACHINES
    }
    first, second = built.values()
    differing = sorted(name for name in first | second if first.get(name) != second.get(name))
    if differing or len(first) != 4:
        raise CheckError(f"two builds of {sorted(first)} differ in {differing}")
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(scratch / MACHINES[0][0] / "dist", DIST)
    _from_sdists(scratch / "unpacked", first)
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(first.items()))
    (DIST / "SHA256SUMS").write_text(lines, encoding="utf-8")
    return f"two builds are the same bytes: {', '.join(sorted(first))}"


def _from_sdists(folder: Path, built: Mapping[str, str]) -> None:
    """Raise unless each sdist makes the wheel that the tree made."""
    when = ran("git", "show", "--no-patch", "--format=%ct", "HEAD", cwd=ROOT).strip()
    for sdist in DIST.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory")
        project = folder / sdist.name.removesuffix(".tar.gz")
        ran(*command, folder, cwd=project, env={**os.environ, "SOURCE_DATE_EPOCH": when})
    for wheel in folder.glob("*.whl"):
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != built[wheel.name]:
            raise CheckError(f"{wheel.name} is another out of its sdist")


# --- what is installed ---------------------------------------------------------------------------


def installed(scratch: Path) -> str:
    """Install the wheels where nothing is, with what the index has for them, and serve."""
    prefix = scratch / "clean"
    ran(sys.executable, "-m", "venv", prefix)
    pip = (prefix / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    ran(*pip, "install", "--quiet", *DIST.glob("*.whl"), cwd=scratch)
    ran(*pip, "check", cwd=scratch)
    lacking = [
        str(each.relative_to(ROOT))
        for each in (ROOT / "share").rglob("*")
        if each.is_file() and not (prefix / each.relative_to(ROOT)).is_file()
    ]
    if lacking:
        raise CheckError(f"the wheel does not bring {lacking}")
    told = ran(prefix / "bin" / "cachetier", "--version", cwd=scratch).strip()
    if told != f"cachetier {version()}":
        raise CheckError(f"the installed program calls itself {told}")
    with moto_server() as bucket:
        tried(prefix / "bin" / "cachetier", bucket, scratch / "node")
    return f"{told} of a clean environment serves, drains and restores"


def tried(program: Path, bucket: S3Endpoint, node: Path) -> None:
    """Serve with an installed program, and take a shard to the bucket and back."""
    node.mkdir()
    socket = Path(tempfile.mkdtemp(prefix="ct-")) / "s"  # a socket's path must be short
    environment = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "HOME": str(node),
        "CACHETIER_URL": f"unix://{socket}",
        **bucket.environment(),
    }
    shard, back = node / "shard", node / "back"
    shard.write_bytes(os.urandom(1 << 20))

    def verb(*words: str | Path) -> str:
        return ran(program, *words, cwd=node, env=environment)

    where = "release/1/w"
    with _serving(program, bucket, socket, node, environment):
        verb("put", shard, where, "--seal", "--json")
        verb("wait", "release", "1", "--level", "durable")
        verb("get", where, back)
        verb("status")
    if back.read_bytes() != shard.read_bytes():
        raise CheckError("a shard came back as another")


@contextmanager
def _serving(
    program: Path, bucket: S3Endpoint, socket: Path, node: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Run ``cachetier serve`` until the block ends; it must end well too."""
    command = (program, "serve", "--json", "--cache-dir", node / "cache", "--socket", socket)
    remote = ("--remote", f"s3://{bucket.bucket}/release", "--remote-endpoint", bucket.url)
    more = ("--set", f"remote_assume={bucket.verify}", "--http", "", "--capacity", "1 GB")
    with (node / "log").open("w", encoding="utf-8") as log:
        serve = subprocess.Popen(
            (*command, *remote, *more),
            cwd=node,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert serve.stdout is not None
        if json.loads(serve.stdout.readline() or "{}").get("state") != "ready":
            raise CheckError(f"serve does not begin: {(node / 'log').read_text(encoding='utf-8')}")
        yield
        serve.terminate()
        if serve.wait(60):
            raise CheckError(f"serve ends with {serve.returncode}")
    finally:
        serve.kill()
        serve.wait()


# --- the image -----------------------------------------------------------------------------------


def image(scratch: Path) -> str:
    """Do the image's own steps where there is no network, with the wheels of ``make wheels``."""
    if not list(WHEELS.glob("*.whl")):
        raise CheckError("deploy/wheels is empty: run `make wheels`")
    context, _ = sources(scratch / "context")
    shutil.copytree(WHEELS, context / "deploy" / "wheels", dirs_exist_ok=True)
    root = scratch / "image"
    work = root / "src"
    work.mkdir(parents=True)
    stage = (context / "deploy" / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1]
    for kind, rest in re.findall(r"^(COPY|RUN) ((?:.*\\\n)*.*)$", stage, re.MULTILINE):
        *names, last = rest.split()
        if kind == "COPY":
            _copied([context / name for name in names], work / last)
        else:
            placed = re.sub(r"(?<![\w.])/(opt|dist)\b", rf"{root}/\1", rest)
            ran("unshare", "--net", "sh", "-ec", placed, cwd=work)
    return ran(root / "opt" / "cachetier" / "bin" / "cachetier", "--version").strip() + (
        " of the image was built without a network"
    )


def _copied(paths: list[Path], to: Path) -> None:
    """Copy as COPY does: a folder's content becomes the target's."""
    for path in paths:
        if path.is_dir():
            shutil.copytree(path, to, dirs_exist_ok=True)
        else:
            into = to if str(to).endswith("requirements") or to.is_dir() else to.parent
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into)


CHECKS: tuple[Callable[[Path], str], ...] = (changelog, distributions, installed, image)


def main() -> int:
    """Run each check that the command line names, or all."""
    named = sys.argv[1:]
    build_folder = ROOT / "build"
    build_folder.mkdir(exist_ok=True)
    failed = 0
    for check in CHECKS:
        if named and check.__name__ not in named:
            continue
        with tempfile.TemporaryDirectory(dir=build_folder) as scratch:
            try:
                sys.stdout.write(f"ok      {check.__name__:14}{check(Path(scratch))}\n")
            except CheckError as error:
                failed += 1
                sys.stdout.write(f"failed  {check.__name__:14}{error}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
