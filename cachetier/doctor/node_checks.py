"""The checks of the node: measure, then let ``node`` judge."""

from __future__ import annotations

import grp
import os
import platform
import pwd
import re
import resource
from pathlib import Path

from cachetier import __version__
from cachetier.doctor import node
from cachetier.doctor.findings import CheckResult
from cachetier.doctor.limits import CgroupLimits, limits_of
from cachetier.doctor.subject import Patient
from cachetier.local.files.filesystem import mount_of

PROC = Path("/proc")
_AVERAGE = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)
_LIMIT = re.compile(r"^Max (open files|locked memory)\s+(\S+)", re.MULTILINE)


def check_memory(patient: Patient) -> CheckResult:
    return node.judge_memory(_limits(patient), len(patient.remotes), _process(patient))


def check_cpu(patient: Patient) -> CheckResult:
    usable = len(os.sched_getaffinity(patient.service_pid or 0))
    return node.judge_cpu(_limits(patient), usable, patient.drain_threads)


def check_io(patient: Patient) -> CheckResult:
    return node.judge_io(_limits(patient))


def check_files(patient: Patient) -> CheckResult:
    soft, locked = _open_files(patient)
    return node.judge_files(soft, locked, _process(patient))


def check_pressure(_patient: Patient) -> CheckResult:
    averages = {}
    for what in ("cpu", "io", "memory"):
        found = _AVERAGE.search(_text(PROC / "pressure" / what))
        if found:
            averages[what] = float(found[1])
    return node.judge_pressure(averages)


def check_courtesy(patient: Patient) -> CheckResult:
    drain = (patient.service or {}).get("drain") or {}
    return node.judge_courtesy(_means(), drain.get("courtesy"))


def check_software(_patient: Patient) -> CheckResult:
    from cachetier.local.catalog.connection import SAFE_SQLITE, sqlite_version

    versions = {
        "cachetier": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite_version(),
        "kernel": platform.release(),
    }
    return node.judge_software(
        versions,
        _number(sqlite_version()) >= SAFE_SQLITE,
        _client_version(),
        __version__,
    )


def check_socket(patient: Patient) -> CheckResult:
    uids = {uid: _groups(uid) for uid in patient.allowed_uids}
    own = os.geteuid()
    if patient.service_pid is not None:
        own = (PROC / str(patient.service_pid)).stat().st_uid
    way = [
        node.Step(str(each), status.st_mode, status.st_uid, status.st_gid)
        for each in reversed(patient.socket.absolute().parents)
        if each.exists()
        for status in [each.stat()]
    ]
    return node.judge_socket(str(patient.socket), patient.socket_mode, way, uids, own)


def check_service(patient: Patient) -> CheckResult:
    return node.judge_service(patient.service, patient.service_fault, __version__)


# --- how it is measured --------------------------------------------------------------------------


def _process(patient: Patient) -> str:
    pid = patient.service_pid
    return "this shell" if pid is None else f"the service (pid {pid})"


def _limits(patient: Patient) -> CgroupLimits:
    path = Path(os.path.realpath(patient.cache_dir))
    mount = mount_of(path, _text(PROC / "self/mountinfo"))
    return limits_of(patient.service_pid, mount.device)


def _open_files(patient: Patient) -> tuple[int, int | None]:
    """Return the soft limits of open files and locked memory; None: no limit."""
    found = dict(_LIMIT.findall(_text(PROC / f"{patient.service_pid}/limits")))
    if found:
        files, locked = found.get("open files", "0"), found.get("locked memory", "")
        return (
            int(files) if files.isdigit() else 1 << 30,
            int(locked) if locked.isdigit() else None,
        )
    files_soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locked_soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = resource.RLIM_INFINITY
    return (
        1 << 30 if files_soft == unlimited else files_soft,
        None if locked_soft == unlimited else locked_soft,
    )


def _means() -> list[str]:
    """Return by what a drain could stand behind others, as far as a look tells."""
    means = []
    groups = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
    if os.geteuid() == 0 and any(os.access(group / "cgroup.procs", os.W_OK) for group in groups):
        means.append("cgroup")
    enabled = _text(PROC / "sys/kernel/sched_autogroup_enabled").strip()
    if enabled == "1" or (not enabled and (PROC / "self/autogroup").exists()):
        means.append("autogroup")
    return means


def _groups(uid: int) -> frozenset[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    others = {group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem}
    return frozenset({user.pw_gid, *others})


def _client_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cachetier-client")
    except PackageNotFoundError:
        return "not installed"


def _number(version: str) -> int:
    """Return SQLite's version as one number: 3.51.3 is 3051003."""
    major, minor, patch = [*(int(part) for part in version.split(".")[:3]), 0, 0][:3]
    return major * 1_000_000 + minor * 1_000 + patch


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
