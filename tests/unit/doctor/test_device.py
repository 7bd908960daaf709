"""Which disk it is, from a system directory as the kernel has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.doctor.device import Device, DeviceKind, device_at, kind_of


class Sys:
    """A made-up /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("dev/block", "class/block", "devices"):
            (root / name).mkdir(parents=True)

    def disk(self, bus: str, name: str, number: str, **files: str) -> Path:
        """Add a disk; ``queue__rotational`` is the file ``queue/rotational``."""
        place = self.root / "devices" / bus / name
        place.mkdir(parents=True)
        for path, text in files.items():
            file = place / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        self.name(place, number)
        return place

    def name(self, place: Path, number: str) -> None:
        (self.root / "dev/block" / number).symlink_to(place)
        (self.root / "class/block" / place.name).symlink_to(place)


@pytest.fixture
def sys(tmp_path: Path) -> Sys:
    return Sys(tmp_path)


@pytest.mark.parametrize(
    ("name", "model", "transport", "path", "rotational", "kind"),
    [
        ("nvme0n1", "SAMSUNG MZQL2", "pcie", "/pci/", "0", DeviceKind.NVME),
        ("nvme0n1", "Linux", "tcp", "/nvme-fabrics/", "0", DeviceKind.NETWORK),
        ("nvme0n1", "Linux", "rdma", "/nvme-fabrics/", "0", DeviceKind.NETWORK),
        ("nvme1n1", "Amazon Elastic Block Store", "pcie", "/pci/", "0", DeviceKind.NETWORK),
        ("nvme1n1", "Amazon EC2 NVMe Instance Storage", "pcie", "/pci/", "0", DeviceKind.NVME),
        ("nvme0n1", "nvme_card-pd", "pcie", "/pci/", "0", DeviceKind.NETWORK),
        ("nvme0n1", "nvme_card", "pcie", "/pci/", "0", DeviceKind.NVME),
        ("sda", "Google PersistentDisk", "", "/virtio0/", "0", DeviceKind.NETWORK),
        ("nvme0n1", "MSFT NVMe Accelerator v1.0", "pcie", "/pci/", "0", DeviceKind.NETWORK),
        ("nvme0n1", "QEMU NVMe Ctrl", "pcie", "/pci/", "0", DeviceKind.VIRTUAL),
        ("vda", "", "", "/virtio1/", "1", DeviceKind.VIRTUAL),
        ("xvda", "", "", "/vbd-51712/", "0", DeviceKind.VIRTUAL),
        ("sda", "VMware Virtual disk", "", "/ata1/", "1", DeviceKind.VIRTUAL),
        ("sda", "ATA INTEL SSD", "", "/ata1/", "0", DeviceKind.SSD),
        ("sda", "ATA WDC", "", "/ata1/", "1", DeviceKind.HDD),
        ("sdb", "LIO-ORG disk", "", "/host3/session1/target3/", "0", DeviceKind.NETWORK),
        ("rbd0", "", "", "/rbd/", "0", DeviceKind.NETWORK),
        ("zram0", "", "", "/virtual/", "0", DeviceKind.MEMORY),
        ("loop3", "", "", "/virtual/", "0", DeviceKind.LOOP),
        ("sdc", "", "", "/odd/", "", DeviceKind.UNKNOWN),
    ],
)
def test_each_kind_of_disk_is_told_apart(
    name: str, model: str, transport: str, path: str, rotational: str, kind: DeviceKind
) -> None:
    assert kind_of(name, model, transport, path, rotational) is kind


def test_a_partition_belongs_to_its_disk(sys: Sys) -> None:
    disk = sys.disk(
        "pci/nvme/nvme0",
        "nvme0n1",
        "259:0",
        device__model="SAMSUNG",
        device__transport="pcie",
        queue__rotational="0",
        queue__write_cache="write through",
    )
    (disk / "nvme0n1p1").mkdir()
    (disk / "nvme0n1p1/partition").write_text("1\n")
    sys.name(disk / "nvme0n1p1", "259:1")
    expected = Device("nvme0n1", "SAMSUNG", DeviceKind.NVME, volatile_cache=False)
    assert device_at("259:1", sys=sys.root) == expected


def test_an_nvme_of_several_paths_says_how_the_first_is_connected(sys: Sys) -> None:
    sys.disk("virtual/nvme-subsystem", "nvme2n1", "259:2", device__nvme2__transport="tcp")
    found = device_at("259:2", sys=sys.root)
    assert found is not None
    assert found.kind is DeviceKind.NETWORK


def test_a_volume_is_followed_down_to_its_disks(sys: Sys) -> None:
    for number, name in enumerate(("nvme0n1", "nvme1n1")):
        sys.disk(f"pci/nvme/{name}", name, f"259:{number}", device__model="M")
    (sys.disk("virtual", "md0", "9:0") / "slaves").mkdir()
    (sys.disk("virtual", "dm-0", "253:0") / "slaves").mkdir()
    for upper, lower in (("md0", "nvme0n1"), ("md0", "nvme1n1"), ("dm-0", "md0")):
        (sys.root / "devices/virtual" / upper / "slaves" / lower).touch()
    found = device_at("253:0", sys=sys.root)
    assert found is not None
    assert (found.kind, found.members, found.shown) == (DeviceKind.NVME, 2, "nvme0n1, M and 1 more")


def test_a_filesystem_without_a_number_is_found_by_what_was_mounted(sys: Sys) -> None:
    sys.disk("pci/ata1", "sda", "8:0", queue__rotational="0", device__vendor="0x1af4")
    found = device_at("0:42", "/dev/sda", sys=sys.root)
    assert found == Device("sda", "", DeviceKind.SSD)
    assert device_at("0:42", "pool/data", sys=sys.root) is None
