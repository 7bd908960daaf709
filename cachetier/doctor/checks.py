"""All checks, in one table, and how they are run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from dataclasses import dataclass, replace

from cachetier.doctor import disk_checks, node_checks, remote_checks
from cachetier.doctor.findings import CheckResult, State, skipped, warn
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.refusals import judge_refusal
from cachetier.doctor.subject import Patient
from cachetier.errors import CachetierError, InvalidRequestError

OfNode = Callable[[Patient], CheckResult]
OfRemote = Callable[[Probe, Patient], CheckResult]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check of this node; ``group`` is ``disk`` or ``node``."""

    name: str
    group: str
    run: OfNode


@dataclass(frozen=True, slots=True)
class RemoteCheck:
    """A check of each remote; ``right`` is what IAM calls the permission it needs."""

    name: str
    run: OfRemote
    right: str = ""


NODE_CHECKS = (
    # Before the disk's: those press the disk themselves.
    NodeCheck("memory", "node", node_checks.check_memory),
    NodeCheck("cpu", "node", node_checks.check_cpu),
    NodeCheck("io", "node", node_checks.check_io),
    NodeCheck("files", "node", node_checks.check_files),
    NodeCheck("pressure", "node", node_checks.check_pressure),
    NodeCheck("courtesy", "node", node_checks.check_courtesy),
    NodeCheck("software", "node", node_checks.check_software),
    NodeCheck("socket", "node", node_checks.check_socket),
    NodeCheck("service", "node", node_checks.check_service),
    NodeCheck("filesystem", "disk", disk_checks.check_filesystem),
    NodeCheck("device", "disk", disk_checks.check_device),
    NodeCheck("directory", "disk", disk_checks.check_directory),
    NodeCheck("direct-io", "disk", disk_checks.check_direct_io),
    NodeCheck("sync", "disk", disk_checks.check_sync),
    NodeCheck("write-rate", "disk", disk_checks.check_write_rate),
    NodeCheck("space", "disk", disk_checks.check_space),
)
REMOTE_CHECKS = (
    RemoteCheck("credentials", remote_checks.check_credentials),
    RemoteCheck("reach", remote_checks.check_reach, "s3:ListBucket"),
    RemoteCheck("clock", remote_checks.check_clock, "s3:ListBucket"),
    RemoteCheck("put", remote_checks.check_put, "s3:PutObject"),
    RemoteCheck("read", remote_checks.check_read, "s3:GetObject"),
    RemoteCheck("list", remote_checks.check_list, "s3:ListBucket"),
    RemoteCheck("conditional", remote_checks.check_conditional, "s3:PutObject"),
    RemoteCheck("checksum", remote_checks.check_checksum, "s3:PutObject"),
    RemoteCheck("multipart", remote_checks.check_multipart, "s3:PutObject"),
    RemoteCheck("copy", remote_checks.check_copy, "s3:PutObject"),
    RemoteCheck("abort", remote_checks.check_abort, "s3:AbortMultipartUpload"),
    RemoteCheck("delete", remote_checks.check_delete, "s3:DeleteObject"),
    RemoteCheck("lifecycle", remote_checks.check_lifecycle, "s3:GetLifecycleConfiguration"),
    RemoteCheck("versioning", remote_checks.check_versioning, "s3:GetBucketVersioning"),
)
# Without one of these nothing else can be said of a remote.
FIRST = frozenset({"credentials", "reach"})
GROUPS = ("node", "disk", "remote")
NAMES = (*(check.name for check in NODE_CHECKS), *(check.name for check in REMOTE_CHECKS))


def checked_names(wanted: Collection[str]) -> frozenset[str]:
    """Return the names of checks that ``wanted`` names, itself or by group; all of them if empty.

    Raises:
        InvalidRequestError: There is no such check; names the nearest.
    """
    names: set[str] = set()
    for name in wanted:
        if name not in NAMES and name not in GROUPS:
            near = difflib.get_close_matches(name, [*NAMES, *GROUPS], n=1)
            meant = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(NAMES)}."
            raise InvalidRequestError(f"there is no check {name!r}", hint=meant)
        names |= {check.name for check in NODE_CHECKS if name in (check.name, check.group)}
        names |= {check.name for check in REMOTE_CHECKS if name in (check.name, "remote")}
    return frozenset(names or NAMES)


def examine(patient: Patient, names: Collection[str] = NAMES) -> Generator[tuple[str, CheckResult]]:
    """Run the checks called ``names``; yields (group, finding) as they come.

    Close the iterator, or run it to its end: what the checks keep in a bucket goes then.
    """
    for node_check in NODE_CHECKS:
        if node_check.name in names:
            yield node_check.group, node_check.run(patient)
    for settings in () if patient.skip_remote else patient.remotes:
        if set(names).isdisjoint(check.name for check in REMOTE_CHECKS):
            return
        with closing(_examined(Probe(settings), patient, names)) as found:
            for finding in found:
                yield "remote", replace(finding, remote=settings.name)


def _examined(probe: Probe, patient: Patient, names: Collection[str]) -> Generator[CheckResult]:
    """Run the checks of one remote and clean up, whatever happens."""
    try:
        for check in REMOTE_CHECKS:
            if check.name in FIRST or (check.name in names and not probe.refused):
                finding = _checked(check, probe, patient)
                if check.name in FIRST and finding.state is State.FAIL and not probe.refused:
                    probe.refused = check.name
            else:
                finding = skipped(check.name, f"the remote cannot be used: see `{probe.refused}`")
            if check.name in names or finding.name == probe.refused:
                yield finding
    finally:
        left = probe.clean()
    if left:
        fix = f"Delete them by hand: everything under {probe.folder} is doctor's."
        yield warn("cleanup", f"left behind: {', '.join(left)}", fix)


def _checked(check: RemoteCheck, probe: Probe, patient: Patient) -> CheckResult:
    try:
        return check.run(probe, patient)
    except NotTriedError as reason:
        return skipped(check.name, str(reason))
    except CachetierError as error:
        return judge_refusal(check.name, error, probe.settings, check.right)
