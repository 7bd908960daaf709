"""Which filesystem a directory lies on, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.errors import ConfigError
from cachetier.local.files.filesystem import MountedDisk, mount_of, refuse_unsafe

MOUNTINFO = r"""
21 1 254:0 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a
22 21 254:1 / /data rw,relatime shared:2 master:1 - ext4 /dev/vdb rw
23 22 0:30 / /data/ram rw - tmpfs tmpfs rw
24 22 0:31 / /data/with\040space rw - xfs /dev/vdc rw
25 21 0:32 / /data2 rw - nfs4 server:/x rw
26 21 0:33 / /fuse rw - fuse.sshfs host: rw
27 22 254:3 / /data/twice rw - ext4 /dev/vdd rw
28 22 254:4 / /data/twice rw - xfs /dev/vde rw
not a mount at all
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "overlay"),
        ("/cache", "overlay"),
        ("/data", "ext4"),
        ("/data/cache", "ext4"),
        ("/data/ram", "tmpfs"),
        ("/data/ram/cache", "tmpfs"),
        ("/data/ramble", "ext4"),
        ("/data/with space/cache", "xfs"),
        ("/data2/cache", "nfs4"),
        ("/database", "overlay"),
        ("/fuse/x", "fuse.sshfs"),
        ("/data/twice/x", "xfs"),
    ],
)
def test_a_path_is_on_the_nearest_mount_above_it(path: str, kind: str) -> None:
    assert mount_of(Path(path), MOUNTINFO).kind == kind


@pytest.mark.parametrize("kind", ["overlay", "nfs4", "cifs", "fuse.sshfs", "9p", "tmpfs", "ramfs"])
def test_what_cannot_keep_the_promise_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unsafe(Path("/c"), MountedDisk("/", kind), allow_volatile=False)
    assert kind in caught.value.message


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "fuseblk", "unknown"])
def test_local_disks_are_tried(kind: str) -> None:
    refuse_unsafe(Path("/c"), MountedDisk("/", kind), allow_volatile=False)


def test_memory_is_taken_only_on_purpose() -> None:
    refuse_unsafe(Path("/c"), MountedDisk("/", "tmpfs"), allow_volatile=True)
    with pytest.raises(ConfigError):
        refuse_unsafe(Path("/c"), MountedDisk("/", "overlay"), allow_volatile=True)
