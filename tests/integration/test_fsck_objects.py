"""Objects of the S3 door on a real S3 server: evicted, lost there, and rebuilt from their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from cachetier.access.principals import OWNER
from cachetier.cli.app import app
from cachetier.drain.serve import supervisor
from cachetier.local.catalog import objects
from cachetier.remote.base import ObjectStore
from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.integration.s3door import Key, S3Caller
from tests.integration.serving import as_file, node_settings, running
from tests.integration.two_remotes import until

PARTS = (noise(5 << 20), noise(5 << 20), noise(300_000))
WHOLE = noise(200_000)


@dataclass
class Site:
    """A node with a mount, to be started and stopped."""

    settings: dict[str, Any]
    bucket: str
    prefix: str
    store: ObjectStore
    config: Path

    @contextmanager
    def serving(self) -> Iterator[tuple[Service, Any]]:
        with running(self.settings) as service:
            access = service.operations.access
            token, secret = access.create_s3_key(access._named[OWNER], None)
            assert service.s3_url is not None
            yield service, S3Caller(service.s3_url, Key(token.id, secret)).client()

    def where(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{name}"}

    def put(self, s3: Any) -> dict[str, str]:
        """Put two objects, one in parts; return their ETags."""
        whole = s3.put_object(**self.where("whole"), Body=WHOLE, Metadata={"who": "me"})["ETag"]
        where = self.where("parts")
        upload = {**where, "UploadId": s3.create_multipart_upload(**where)["UploadId"]}
        parts = [
            {
                "PartNumber": number,
                "ETag": s3.upload_part(**upload, PartNumber=number, Body=part)["ETag"],
            }
            for number, part in enumerate(PARTS, 1)
        ]
        done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        return {"whole": whole, "parts": done["ETag"]}

    def reads(self, s3: Any, etags: dict[str, str]) -> None:
        for name, body in (("whole", WHOLE), ("parts", b"".join(PARTS))):
            found = s3.get_object(**self.where(name))
            assert found["ETag"] == etags[name]
            assert found["Body"].read() == body
        assert s3.head_object(**self.where("whole"))["Metadata"] == {"who": "me"}

    def fsck(self, *options: str) -> Any:
        return CliRunner().invoke(app, ["fsck", "--config", str(self.config), *options])


def drained(service: Service) -> None:
    until(lambda: all(mount["objects"] == 0 for mount in service.operations.status()["mounts"]))


@pytest.fixture
def site(tmp_path: Path, seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Site:
    remote = f"s3://{seaweed_s3.bucket}/{tmp_path.name}"
    prefix = f"{tmp_path.name}-objects"
    plain = node_settings(tmp_path, seaweed_s3, remote, monkeypatch)
    config = tmp_path / "cachetier.toml"
    table = f'[[s3_mount]]\nname = "m"\nbucket = "{seaweed_s3.bucket}/{prefix}"'
    config.write_text(as_file(plain) + table + "\n")
    mount = {"name": "m", "bucket": f"{seaweed_s3.bucket}/{prefix}"}
    settings = {**plain, "s3": "127.0.0.1:0", "s3_mount": [mount]}
    return Site(settings, seaweed_s3.bucket, prefix, seaweed_s3.store(), config)


def test_evicted_objects_are_read_through_the_door(site: Site) -> None:
    with site.serving() as (service, s3):
        etags = site.put(s3)
        drained(service)
        for name in etags:
            version = service.store.read(objects.current, "s3:m", f"{site.prefix}/{name}")
            assert version is not None
            for piece in service.store.read(objects.pieces_of, version.version):
                assert service.store.evict(piece)
        assert s3.head_object(**site.where("parts"))["ResponseMetadata"]["HTTPStatusCode"] == 200
        site.reads(s3, etags)
        site.reads(s3, etags)


def test_what_the_bucket_lost_is_sent_again_under_its_etag(site: Site) -> None:
    with site.serving() as (service, s3):
        etags = site.put(s3)
        drained(service)
    assert site.fsck("--data").exit_code == 0
    site.store.delete(f"{site.prefix}/parts")

    assert "object_missing" in site.fsck().stdout
    assert site.fsck("--repair").exit_code == 0

    with site.serving() as (service, s3):
        drained(service)
        site.reads(s3, etags)
    assert site.fsck("--data").exit_code == 0


def without_catalog(site: Site) -> None:
    for path in Path(site.settings["cache_dir"]).glob("catalog.db*"):
        path.unlink()


def no_drain(*_of_it: object) -> NoReturn:
    raise OSError("no drain is to start")


def test_a_lost_catalog_is_rebuilt_and_drained(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "spawn", no_drain)
        with site.serving() as (_service, s3):
            etags = site.put(s3)
    without_catalog(site)

    rebuilt = site.fsck("--rebuild")
    assert rebuilt.exit_code == 0, rebuilt.stdout
    assert rebuilt.stdout.count("it is dirty again") == 2

    with site.serving() as (service, s3):
        site.reads(s3, etags)
        drained(service)
        site.reads(s3, etags)
    assert site.fsck("--data").exit_code == 0


def test_files_of_keys_that_were_overwritten_or_deleted_are_no_current_objects(site: Site) -> None:
    cache_dir = Path(site.settings["cache_dir"])
    with site.serving() as (service, s3):
        for name in ("overwritten", "deleted"):
            s3.put_object(**site.where(name), Body=WHOLE)
        drained(service)
        left = [path for path in (cache_dir / "data").rglob("*") if path.is_file()]
        for path in left:
            os.link(path, cache_dir / path.name)
        s3.put_object(**site.where("overwritten"), Body=WHOLE[1:])
        s3.delete_object(**site.where("deleted"))
        drained(service)
    without_catalog(site)
    gone = [path for path in left if not path.exists()]
    for path in gone:  # as a crash leaves them between the catalog and their removal
        (cache_dir / path.name).rename(path)

    rebuilt = site.fsck("--rebuild")

    assert len(gone) == 2 and rebuilt.exit_code == 0, rebuilt.stdout
    assert "it is dirty again" not in rebuilt.stdout
    with site.serving() as (service, s3):
        drained(service)
        found = s3.get_object(**site.where("overwritten"))["Body"].read()
        assert found == WHOLE[1:]
    assert site.store.get(f"{site.prefix}/overwritten") == WHOLE[1:]
    assert site.store.head(f"{site.prefix}/deleted") is None
