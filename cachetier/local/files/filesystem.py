"""Find a directory's filesystem, and whether a commit's promise can be kept on it.

A write lease is granted on overlayfs although a mapping can still write, a network filesystem
acknowledges what a server may lose, and memory forgets everything: so they are refused before a
byte is taken. What is not refused here is tried by ``files.probe``.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

from cachetier.errors import ConfigError

VOLATILE = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
OVERLAYS = frozenset({"overlay", "aufs", "overlayfs"})
NETWORK = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "drvfs", "fuse", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "nfs", "nfs4", "ocfs2", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("vboxsf", "virtiofs", "vmhgfs"),
    }
)
_HINT = "Put cache_dir on a local ext4 or XFS disk."
_FSXATTR = struct.Struct("=I8xI12x")  # its flags and its project
_GET_FSXATTR, _INHERITED = 0x801C581F, 0x200
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountedDisk:
    """A mounted filesystem: where, and of which kind.

    ``device`` is its number as ``/sys/dev/block`` has it, ``source`` what was mounted.
    """

    point: str
    kind: str
    device: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    options: tuple[str, ...] = field(default=(), compare=False)


def mount_of(path: Path, mountinfo: str) -> MountedDisk:
    """Return the mount that ``path`` (absolute, no links) lies on, by the text of ``mountinfo``.

    Of two mounts on one point the later one hides the earlier.
    """
    found = MountedDisk("/", "unknown")
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:] or len(fields) < 9:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        kind, source, *more = [*fields[fields.index("-", 6) + 1 :], "", ""]
        inside = point == "/" or f"{path}/".startswith(f"{point}/")
        if inside and len(point) >= len(found.point):
            options = tuple(option for text in (fields[5], *more) for option in text.split(","))
            found = MountedDisk(point, kind, fields[2], source, options)
    return found


def project_of(directory: Path) -> int:
    """Return the quota project of whatever is made in ``directory``; 0: none, or nobody can tell.

    Source: Linux, include/uapi/linux/fs.h, ``struct fsxattr``.
    """
    found = bytearray(_FSXATTR.size)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _GET_FSXATTR, found)
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    flags, project = _FSXATTR.unpack(found)
    return int(project) if flags & _INHERITED else 0


def refuse_unsafe(path: Path, mount: MountedDisk, *, allow_volatile: bool) -> None:
    """Refuse a directory on a filesystem of a kind that cannot keep the promise.

    Raises:
        ConfigError: Says which kind it is, and why not.
    """
    kind = mount.kind.partition(".")[0]
    if kind in OVERLAYS:
        reason = "cannot tell whether a file is still open for writing"
    elif kind in NETWORK:
        reason = "is on a network, or outside of the kernel's control, and may lose what it synced"
    elif kind in VOLATILE and not allow_volatile:
        reason = "is in memory: nothing there survives the loss of power"
    else:
        return
    hint = (
        f"{_HINT} For a try, --set allow_volatile=on accepts memory." if kind in VOLATILE else _HINT
    )
    raise ConfigError(f"cache_dir {path} is on {mount.kind}, which {reason}", hint=hint)


def mount_under(path: Path) -> MountedDisk:
    """Return the mount of a path of this machine, which need not exist yet."""
    mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return mount_of(Path(os.path.realpath(path)), mountinfo)


def checked_mount(cache_dir: Path, *, allow_volatile: bool) -> MountedDisk:
    """Return the mount of ``cache_dir``, which need not exist yet, or refuse it.

    Raises:
        ConfigError: The promise of a commit cannot be kept there.
    """
    mount = mount_under(cache_dir)
    refuse_unsafe(Path(os.path.realpath(cache_dir)), mount, allow_volatile=allow_volatile)
    return mount
