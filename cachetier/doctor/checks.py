"""The table of all checks, and the function that runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from cachetier.doctor import disk, node, remote, s3
from cachetier.doctor.findings import CheckResult, State, skipped, warn
from cachetier.doctor.probe import NotTriedError, Probe
from cachetier.doctor.refusals import judge_refusal
from cachetier.doctor.subject import Subject
from cachetier.errors import CachetierError, InvalidRequestError
from cachetier.nearest import nearest
from cachetier.remote.settings import RemoteSettings

OfNode = Callable[[Subject], CheckResult]
OfRemote = Callable[[Probe, Subject], CheckResult]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check of this node; ``group`` is ``disk`` or ``node``."""

    name: str
    group: str
    run: OfNode


@dataclass(frozen=True, slots=True)
class RemoteCheck:
    """A check of each remote, or of each of one ``scheme`` alone.

    ``right`` is what IAM calls the permission it needs.
    """

    name: str
    run: OfRemote
    right: str = ""
    scheme: str | None = None


NODE_CHECKS = (
    # Before the disk's: those press the disk themselves.
    NodeCheck("memory", "node", node.check_memory),
    NodeCheck("cpu", "node", node.check_cpu),
    NodeCheck("io", "node", node.check_io),
    NodeCheck("files", "node", node.check_files),
    NodeCheck("pressure", "node", node.check_pressure),
    NodeCheck("courtesy", "node", node.check_courtesy),
    NodeCheck("software", "node", node.check_software),
    NodeCheck("socket", "node", node.check_socket),
    NodeCheck("tls", "node", node.check_tls),
    NodeCheck("service", "node", node.check_service),
    NodeCheck("filesystem", "disk", disk.check_filesystem),
    NodeCheck("device", "disk", disk.check_device),
    NodeCheck("directory", "disk", disk.check_directory),
    NodeCheck("direct-io", "disk", disk.check_direct_io),
    NodeCheck("sync", "disk", disk.check_sync),
    NodeCheck("write-rate", "disk", disk.check_write_rate),
    NodeCheck("space", "disk", disk.check_space),
    NodeCheck("quota", "disk", disk.check_quota),
)
REMOTE_CHECKS = (
    RemoteCheck("credentials", s3.check_credentials, scheme="s3"),
    RemoteCheck("addressing", s3.check_addressing, scheme="s3"),
    RemoteCheck("reach", remote.check_reach, "s3:ListBucket"),
    RemoteCheck("clock", s3.check_clock, "s3:ListBucket", scheme="s3"),
    RemoteCheck("put", remote.check_put, "s3:PutObject"),
    RemoteCheck("read", remote.check_read, "s3:GetObject"),
    RemoteCheck("at-rest", s3.check_at_rest, "s3:GetObject", scheme="s3"),
    RemoteCheck("list", remote.check_list, "s3:ListBucket"),
    RemoteCheck("metadata", remote.check_metadata, "s3:GetObject"),
    RemoteCheck("missing", remote.check_missing, "s3:GetObject"),
    RemoteCheck("keys", remote.check_keys, "s3:PutObject"),
    RemoteCheck("order", s3.check_order, "s3:ListBucket", scheme="s3"),
    RemoteCheck("lengths", s3.check_lengths, "s3:GetObject", scheme="s3"),
    RemoteCheck("body-limit", s3.check_body_limit, scheme="s3"),
    RemoteCheck("buffering", s3.check_buffering, scheme="s3"),
    RemoteCheck("expect", s3.check_expect, scheme="s3"),
    RemoteCheck("connections", s3.check_connections, scheme="s3"),
    RemoteCheck("conditional", remote.check_conditional, "s3:PutObject"),
    RemoteCheck("checksum", remote.check_checksum, "s3:PutObject"),
    RemoteCheck("multipart", remote.check_multipart, "s3:PutObject"),
    RemoteCheck("copy", remote.check_copy, "s3:PutObject"),
    RemoteCheck("abort", remote.check_abort, "s3:AbortMultipartUpload"),
    RemoteCheck("delete", remote.check_delete, "s3:DeleteObject"),
    RemoteCheck("lifecycle", s3.check_lifecycle, "s3:GetLifecycleConfiguration", scheme="s3"),
    RemoteCheck("versioning", s3.check_versioning, "s3:GetBucketVersioning", scheme="s3"),
)
# Without one of these nothing else can be said of a remote.
FIRST = frozenset({"credentials", "addressing", "reach"})
# No waiting mends what these find, and nothing would become durable.
LASTING = (
    remote.check_metadata,
    remote.check_missing,
    remote.check_keys,
    s3.check_body_limit,
    remote.check_conditional,
)
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
            near = nearest(name, [*NAMES, *GROUPS])
            meant = f"Did you mean {near}?" if near else f"There are: {', '.join(NAMES)}."
            raise InvalidRequestError(f"there is no check {name!r}", hint=meant)
        names |= {check.name for check in NODE_CHECKS if name in (check.name, check.group)}
        names |= {check.name for check in REMOTE_CHECKS if name in (check.name, "remote")}
    return frozenset(names or NAMES)


def examine(subject: Subject, names: Collection[str] = NAMES) -> Generator[tuple[str, CheckResult]]:
    """Run the checks called ``names``; yields (group, finding) as they come.

    Close the iterator, or run it to its end: what the checks keep in a bucket goes then.
    """
    for node_check in NODE_CHECKS:
        if node_check.name in names:
            finding = node_check.run(subject)
            yield node_check.group, replace(finding, name=node_check.name)
    for settings in () if subject.skip_remote else subject.remotes:
        if set(names).isdisjoint(check.name for check in REMOTE_CHECKS):
            return
        with closing(_examined(Probe(settings), subject, names)) as found:
            for finding in found:
                yield "remote", replace(finding, remote=settings.name)


def lasting_fault(settings: RemoteSettings) -> CheckResult | None:
    """Return how a remote differs from S3 so that it is of no use; None if it is not known to.

    A call that fails is no such difference.
    """
    return _first_fault(settings, LASTING)


def wants_readback(settings: RemoteSettings) -> bool:
    """Return whether a remote is seen not to keep CRC-64/NVME; a call that fails shows nothing."""
    return _first_fault(settings, (remote.check_checksum,)) is not None


def _first_fault(
    settings: RemoteSettings, checks: Sequence[Callable[..., CheckResult]]
) -> CheckResult | None:
    probe = Probe(settings)
    known: set[object] = {check.run for check in _checks_of(settings)}
    try:
        for check in (each for each in checks if each in known):
            with suppress(NotTriedError, CachetierError):
                finding = check(probe)
                if finding.state is State.FAIL:
                    return finding
    finally:
        probe.clean()
    return None


def _checks_of(settings: RemoteSettings) -> list[RemoteCheck]:
    return [each for each in REMOTE_CHECKS if each.scheme in (None, settings.scheme)]


def _examined(probe: Probe, subject: Subject, names: Collection[str]) -> Generator[CheckResult]:
    """Run the checks of one remote and clean up, whatever happens."""
    try:
        for check in _checks_of(probe.settings):
            if check.name in FIRST or (check.name in names and not probe.refused):
                finding = _checked(check, probe, subject)
                if check.name in FIRST and finding.state is State.FAIL and not probe.refused:
                    probe.refused = check.name
            else:
                finding = skipped(f"the remote cannot be used: see `{probe.refused}`")
            if check.name in names or check.name == probe.refused:
                yield replace(finding, name=check.name)
    finally:
        left = probe.clean()
    if left:
        fix = f"Delete them by hand: everything under {probe.folder} is doctor's."
        yield replace(warn(f"left behind: {', '.join(left)}", fix), name="cleanup")


def _checked(check: RemoteCheck, probe: Probe, subject: Subject) -> CheckResult:
    try:
        return check.run(probe, subject)
    except NotTriedError as reason:
        return skipped(str(reason))
    except CachetierError as error:
        return judge_refusal(error, probe.settings, check.right)
