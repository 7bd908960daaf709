"""The checks of the node: limits, the kernel, the socket, a service that runs.

``check_*`` measure, ``judge_*`` are pure functions from what was measured to a ``CheckResult``.
"""

from __future__ import annotations

import grp
import math
import os
import platform
import pwd
import re
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachetier_client.units import counted, shown_size

from cachetier import __version__
from cachetier.doctor.findings import CheckResult, fail, ok, skipped, warn
from cachetier.doctor.limits import CgroupLimits, limits_of, text_of
from cachetier.doctor.subject import Subject
from cachetier.errors import ConfigError
from cachetier.local.files.filesystem import mount_of
from cachetier.tls import DAY_SECONDS, WARN_DAYS, Certificate

PROC = Path("/proc")
_AVERAGE = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)
_LIMIT = re.compile(r"^Max (open files|locked memory)\s+(\S+)", re.MULTILINE)


def check_memory(subject: Subject) -> CheckResult:
    return judge_memory(_limits(subject), len(subject.remotes), _process(subject))


def check_cpu(subject: Subject) -> CheckResult:
    usable = len(os.sched_getaffinity(subject.service_pid or 0))
    return judge_cpu(_limits(subject), usable, subject.drain_threads)


def check_io(subject: Subject) -> CheckResult:
    return judge_io(_limits(subject))


def check_files(subject: Subject) -> CheckResult:
    soft, locked = _open_files(subject)
    return judge_files(soft, locked, _process(subject))


def check_pressure(_subject: Subject) -> CheckResult:
    averages = {}
    for what in ("cpu", "io", "memory"):
        found = _AVERAGE.search(text_of(PROC / "pressure" / what))
        if found:
            averages[what] = float(found[1])
    return judge_pressure(averages)


def check_courtesy(subject: Subject) -> CheckResult:
    drain = (subject.service or {}).get("drain") or {}
    return judge_courtesy(_means(), drain.get("courtesy"))


def check_software(_subject: Subject) -> CheckResult:
    from cachetier.local.catalog.connection import SAFE_SQLITE, sqlite_version

    versions = {
        "cachetier": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite_version(),
        "kernel": platform.release(),
    }
    return judge_software(
        versions,
        _number(sqlite_version()) >= SAFE_SQLITE,
        _client_version(),
        __version__,
    )


def check_socket(subject: Subject) -> CheckResult:
    uids = {uid: _groups(uid) for uid in subject.allowed_uids}
    own = os.geteuid()
    if subject.service_pid is not None:
        own = (PROC / str(subject.service_pid)).stat().st_uid
    way = [
        Step(str(each), status.st_mode, status.st_uid, status.st_gid)
        for each in reversed(subject.socket.absolute().parents)
        if each.exists()
        for status in [each.stat()]
    ]
    return judge_socket(str(subject.socket), subject.socket_mode, way, uids, own)


def check_tls(subject: Subject) -> CheckResult:
    if subject.tls is None:
        return skipped("the HTTP door has no certificate")
    try:
        return judge_certificate(subject.tls.read()[1], time.time())
    except ConfigError as error:
        return fail(error.message, error.hint)


def check_service(subject: Subject) -> CheckResult:
    return judge_service(subject.service, subject.service_fault, __version__)


# --- how it is measured --------------------------------------------------------------------------


def _process(subject: Subject) -> str:
    pid = subject.service_pid
    return "this shell" if pid is None else f"the service (pid {pid})"


def _limits(subject: Subject) -> CgroupLimits:
    path = Path(os.path.realpath(subject.cache_dir))
    mount = mount_of(path, text_of(PROC / "self/mountinfo"))
    return limits_of(subject.service_pid, mount.device)


def _open_files(subject: Subject) -> tuple[int, int | None]:
    """Return the soft limits of open files and locked memory; None: no limit."""
    found = dict(_LIMIT.findall(text_of(PROC / f"{subject.service_pid}/limits")))
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
    enabled = text_of(PROC / "sys/kernel/sched_autogroup_enabled")
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


# The bars that benchmarks/README.md holds the two processes to, at their peak.
SERVE_BYTES = 256 << 20
DRAIN_BYTES = 384 << 20
FEW_FILES, ENOUGH_FILES = 256, 1024
SLOW_DISK_BYTES_PER_SECOND = 500e6
PRESSED_PERCENT = 40.0


def judge_memory(limits: CgroupLimits, drains: int, process: str) -> CheckResult:
    """Say whether ``serve`` and its drains fit into the memory they may use."""
    need_bytes = SERVE_BYTES + drains * DRAIN_BYTES
    need = f"serve and {drains} drain{'s' if drains > 1 else ''} need {shown_size(need_bytes)}"
    values = {"limit_bytes": limits.memory_bytes, "need_bytes": need_bytes}
    if limits.memory_bytes is None:
        return ok(f"{process} has no memory limit; {need}", **values)
    measured = f"{process} may use {shown_size(limits.memory_bytes)}; {need}"
    if limits.memory_bytes < need_bytes:
        fix = f"Raise memory.max to {shown_size(2 * need_bytes)}, or the kernel will end them."
        return fail(measured, fix, **values)
    if limits.memory_bytes < 2 * need_bytes:
        fix = f"Raise memory.max to {shown_size(2 * need_bytes)}: page cache counts as well."
        return warn(measured, fix, **values)
    return ok(measured, **values)


def judge_cpu(limits: CgroupLimits, usable: int, drain_threads: int) -> CheckResult:
    """Say whether there are CPUs for the service, and for the threads that compress."""
    values = {"limit_cpus": limits.cpus, "usable_cpus": usable}
    if limits.cpus is None:
        return ok(f"{usable} CPUs, no quota", **values)
    measured = f"{usable} CPUs, a quota of {limits.cpus:.3g}"
    if limits.cpus < 1:
        fix = "Raise cpu.max to one CPU or more: a throttled service makes every put wait."
        return warn(measured, fix, **values)
    if drain_threads > limits.cpus:
        fix = f"Set drain_cores to {int(limits.cpus)} or less, or raise cpu.max."
        return warn(f"{measured}, and drain_cores has {drain_threads}", fix, **values)
    return ok(measured, **values)


def judge_io(limits: CgroupLimits) -> CheckResult:
    """Say whether a control group holds the disk back."""
    rates = {"read": limits.reads_bytes_per_second, "write": limits.writes_bytes_per_second}
    values = {f"{verb}_limit_bytes_per_second": rate for verb, rate in rates.items()}
    shown = [f"{verb} {shown_size(rate)}/s" for verb, rate in rates.items() if rate is not None]
    if not shown:
        return ok("no limit on the disk", **values)
    measured = f"the cache's disk is limited: {', '.join(shown)}"
    if any(rate is not None and rate < SLOW_DISK_BYTES_PER_SECOND for rate in rates.values()):
        fix = "Raise io.max (version 1: blkio.throttle) of the group for this disk."
        return warn(measured, fix, **values)
    return ok(measured, **values)


def judge_files(soft: int, memlock_bytes: int | None, process: str) -> CheckResult:
    """Say whether enough files can be open; each rank takes a few, each put in flight one."""
    locked = "no limit" if memlock_bytes is None else shown_size(memlock_bytes)
    values = {"nofile": soft, "memlock_bytes": memlock_bytes}
    measured = f"{process} may open {soft} files; memlock {locked}, of which it needs none"
    fix = "Raise it: LimitNOFILE=65536 in the unit, --ulimit nofile=65536 for a container."
    if soft < FEW_FILES:
        return fail(measured, fix, **values)
    return warn(measured, fix, **values) if soft < ENOUGH_FILES else ok(measured, **values)


def judge_pressure(averages: Mapping[str, float] | None) -> CheckResult:
    """Say whether the kernel tells of pressure, by which the drain gives way, and what it tells."""
    if not averages:
        fix = "Boot with psi=1: without it the drain gives way to training's hints alone."
        return warn("the kernel does not tell (no /proc/pressure)", fix)
    values = {f"{what}_some_percent": percent for what, percent in averages.items()}
    waits = ", ".join(f"{what} {percent:.0f} %" for what, percent in averages.items())
    measured = f"share of the last 10 s in which a process waited: {waits}"
    pressed = [what for what, percent in averages.items() if percent >= PRESSED_PERCENT]
    if pressed:
        fix = (
            f"Find the other users of {' and '.join(pressed)}: the drain yields to them and "
            "falls behind."
        )
        return warn(measured, fix, **values)
    return ok(measured, **values)


def judge_courtesy(means: list[str], found: Mapping[str, Any] | None) -> CheckResult:
    """Say whether the drain can stand behind training.

    Args:
        means: What the system seems to offer.
        found: What a running drain reports that took effect; None without one.
    """
    if found is not None:
        means = [what for what in ("cgroup", "autogroup") if found.get(what) is not None]
        if means:
            return ok(f"the drain stands behind training by {' and '.join(means)}")
    elif means:
        return ok(f"the drain can stand behind training by {' or '.join(means)}")
    fix = (
        "Let the service make a control group (Delegate=cpu, DelegateSubgroup=serve in its unit), "
        "or set kernel.sched_autogroup_enabled=1."
    )
    return warn("nice alone, which does not reach across sessions", fix)


def judge_software(
    versions: Mapping[str, str], sqlite_is_safe: bool, client_version: str, version: str
) -> CheckResult:
    """Say which software this is, and whether it can be trusted with commits."""
    measured = ", ".join(f"{what} {number}" for what, number in versions.items())
    if not sqlite_is_safe:
        fix = "Install the pinned requirements: SQLite 3.51.3 or newer (with apsw) is needed."
        return fail(f"{measured}: this SQLite may lose commits", fix, **versions)
    if client_version != version:
        fix = "Install matching versions of cachetier and cachetier-client."
        return warn(f"{measured}; the client is {client_version}", fix, **versions)
    return ok(measured, **versions)


@dataclass(frozen=True, slots=True)
class Step:
    """A directory on the way to the socket."""

    path: str
    mode: int
    uid: int
    gid: int


def judge_socket(
    socket: str, mode: int, way: list[Step], uids: Mapping[int, frozenset[int]], own_uid: int
) -> CheckResult:
    """Say whether the users who may use the socket also get to it.

    Args:
        way: The directories from the root down, as far as they exist.
        uids: The allowed users, with their groups.
    """
    for uid, gids in uids.items():
        if uid in (0, own_uid):
            continue
        for step in way:
            if not _may(uid, gids, step, 0o1):
                fix = "Set `socket` to a path that they can reach, such as /run/cachetier/ct.sock."
                return fail(f"uid {uid} may not enter {step.path}", fix, socket=socket)
        of_service = Step(socket, mode, own_uid, -1)
        if not _may(uid, gids, of_service, 0o2):
            fix = "Name them in `allowed_uids` or as a principal's `uid`: that opens the socket."
            return fail(f"the socket's mode {mode:04o} keeps uid {uid} out", fix, socket=socket)
    who = f"uids {', '.join(map(str, sorted({*uids, own_uid})))}" if uids else f"uid {own_uid}"
    return ok(f"{socket}, for {who}", socket=socket)


def _may(uid: int, gids: frozenset[int], step: Step, bit: int) -> bool:
    """Judge one of the three bits of a mode as the kernel does; ACLs are not looked at."""
    shift = 6 if uid == step.uid else 3 if step.gid in gids else 0
    return bool(step.mode >> shift & bit)


def judge_certificate(shown: Certificate, now: float) -> CheckResult:
    """Say for how long the certificate of the HTTP door is good."""
    left_days = math.floor((shown.expires_at - now) / DAY_SECONDS)
    until = time.strftime("%Y-%m-%d", time.gmtime(shown.expires_at))
    measured = f"{shown.subject}, issued by {shown.issuer}, until {until}"
    fix = "Renew it, and write the new files over the old ones: no restart is needed."
    values = {"expires_at": shown.expires_at, "left_days": left_days}
    if left_days < 0:
        return fail(f"{measured}: it has expired", fix, **values)
    measured += f", {counted(left_days, 'day')} left"
    return warn(measured, fix, **values) if left_days < WARN_DAYS else ok(measured, **values)


def judge_service(status: Mapping[str, Any] | None, fault: str, version: str) -> CheckResult:
    """Say how a running service is."""
    if status is None:
        if fault:
            fix = "See its log. `cachetier serve` replaces a socket that nobody answers."
            return warn(fault, fix)
        return skipped("none runs on this cache directory")
    measured = f"{status['state']}, version {status['version']}, pid {status['pid']}"
    if status.get("fenced"):
        fix = "Replace or repair the disk, then restart the service; reads still work."
        return fail(f"it takes no writes: {status['fenced']}", fix)
    if status.get("quarantined_shards"):
        fix = "See `cachetier ls RUN STEP` for shards in quarantine, and `cachetier fsck`."
        return fail(f"{status['quarantined_shards']} damaged shards", fix)
    if status["state"] not in ("ok", "ready"):
        leaving = status["state"] == "leaving"
        fix = (
            "If the node stays after all: `cachetier leave --stay`."
            if leaving
            else "See `cachetier status`."
        )
        return warn(f"{measured}: {status.get('reason') or 'not as it should be'}", fix)
    if status["version"] != version:
        fix = f"Start it again: {version} is installed."
        return warn(measured, fix)
    return ok(measured)
