"""Find the disk under a filesystem, and whether it is an NVMe in this machine.

A virtual machine's disk tells nothing of what is behind it, and a cloud's network disk presents
itself as an NVMe: the model's name is what gives it away.

Source: Linux, Documentation/ABI/stable/sysfs-block; the vendors' pages on their instance storage.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cachetier.doctor.limits import text_of

SYS = Path("/sys")
_DEPTH = 8  # of mappers upon mappers


class DeviceKind(StrEnum):
    NVME = "nvme"
    SSD = "ssd"
    HDD = "hdd"
    VIRTUAL = "virtual"
    NETWORK = "network"
    MEMORY = "memory"
    LOOP = "loop"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """A disk.

    Args:
        name: As in ``/sys/block``.
        model: Vendor and model, as it names itself; may be empty.
        kind: What it is, as far as it can be told.
        volatile_cache: Whether it keeps writes in a cache that a sync has to flush; None: unknown.
        members: How many disks a volume on top of it spans.
    """

    name: str
    model: str
    kind: DeviceKind
    volatile_cache: bool | None = None
    members: int = 1

    @property
    def shown(self) -> str:
        more = f" and {self.members - 1} more" if self.members > 1 else ""
        return f"{self.name}, {self.model}{more}" if self.model else f"{self.name}{more}"


# What clouds and hypervisors call their disks. The first that is found in the model decides.
_MODELS: tuple[tuple[str, DeviceKind], ...] = (
    ("Amazon EC2 NVMe Instance Storage", DeviceKind.NVME),
    ("Amazon Elastic Block Store", DeviceKind.NETWORK),
    ("nvme_card-pd", DeviceKind.NETWORK),
    ("nvme_card", DeviceKind.NVME),
    ("PersistentDisk", DeviceKind.NETWORK),
    ("Microsoft NVMe Direct Disk", DeviceKind.NVME),
    ("MSFT NVMe Accelerator", DeviceKind.NETWORK),
    ("QEMU", DeviceKind.VIRTUAL),
    ("VMware", DeviceKind.VIRTUAL),
    ("VBOX", DeviceKind.VIRTUAL),
    ("Msft Virtual Disk", DeviceKind.VIRTUAL),
)
_NAMES: tuple[tuple[str, DeviceKind], ...] = (
    (r"(zram|ram)\d+", DeviceKind.MEMORY),
    (r"loop\d+", DeviceKind.LOOP),
    (r"(nbd|rbd|drbd)\d+", DeviceKind.NETWORK),
    (r"(vd|xvd)[a-z]+", DeviceKind.VIRTUAL),
)


def kind_of(name: str, model: str, transport: str, path: str, rotational: str) -> DeviceKind:
    """Judge a disk by what the kernel tells of it; ``path`` is where it hangs in ``/sys``."""
    for pattern, kind in _NAMES:
        if re.fullmatch(pattern, name):
            return kind
    for called, kind in _MODELS:
        if called in model:
            return kind
    if name.startswith("nvme"):
        return DeviceKind.NVME if transport in ("", "pcie", "apple-nvme") else DeviceKind.NETWORK
    if re.search(r"/session\d+/|/rport-|/fc_", path):
        return DeviceKind.NETWORK
    if "/virtio" in path:
        return DeviceKind.VIRTUAL
    return {"0": DeviceKind.SSD, "1": DeviceKind.HDD}.get(rotational, DeviceKind.UNKNOWN)


def device_at(number: str, source: str = "", sys: Path = SYS) -> Device | None:
    """Return the disk under a mount: by its device's number, else by what was mounted.

    None where there is none, or where this system does not tell.
    """
    for place in (sys / "dev/block" / number, sys / "class/block" / os.path.basename(source)):
        if place.name and place.exists():
            disks = _disks_under(Path(os.path.realpath(place)), sys)
            if disks:
                return _described(disks[0], len(disks))
    return None


def _disks_under(place: Path, sys: Path, depth: int = 0) -> list[Path]:
    """Follow partitions and mappers down to the disks."""
    if (place / "partition").exists():
        place = place.parent
    below = sorted(each.name for each in _entries(place / "slaves"))
    if not below or depth >= _DEPTH:
        return [place]
    found: list[Path] = []
    for name in below:
        member = Path(os.path.realpath(sys / "class/block" / name))
        found += [disk for disk in _disks_under(member, sys, depth + 1) if disk not in found]
    return found


def _described(disk: Path, members: int) -> Device:
    vendor, model = text_of(disk / "device/vendor"), text_of(disk / "device/model")
    if vendor.startswith("0x"):  # a number on the bus, not a name
        vendor = ""
    called = " ".join(f"{vendor} {model}".split())
    kind = kind_of(
        disk.name, called, _transport(disk), f"{disk}/", text_of(disk / "queue/rotational")
    )
    cache = {"write back": True, "write through": False}.get(text_of(disk / "queue/write_cache"))
    return Device(disk.name, called, kind, cache, members)


def _transport(disk: Path) -> str:
    """Return how an NVMe is connected; with several paths, how the first one is."""
    own = text_of(disk / "device/transport")
    if own or not disk.name.startswith("nvme"):
        return own
    paths = [each for each in _entries(disk / "device") if re.fullmatch(r"nvme\d+", each.name)]
    return next((text for each in paths if (text := text_of(each / "transport"))), "")


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
