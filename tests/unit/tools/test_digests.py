"""Images by digest: asked of a registry, put behind the tags, and never made up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.digests import (
    FILES,
    ROOT,
    Image,
    UnknownDigestError,
    digest_of,
    pinned,
    references,
    with_own_image,
)

DIGEST = "sha256:" + "0a" * 32


class Registry(BaseHTTPRequestHandler):
    """Knows one tag, for whoever fetched a token first."""

    def do_GET(self) -> None:
        self._answer(200, {}, b'{"token": "pull"}')

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer pull":
            realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="r",scope="pull"'
            self._answer(401, {"WWW-Authenticate": realm})
        elif self.path == "/v2/some/image/manifests/1.2":
            self._answer(200, {"Docker-Content-Digest": DIGEST})
        elif self.path.endswith("/odd"):
            self._answer(200, {"Docker-Content-Digest": "latest"})
        else:
            self._answer(404, {})

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tell nobody."""


@contextmanager
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_registry_tells_the_digest_to_whoever_fetches_a_token() -> None:
    with registry() as host:
        assert digest_of(Image.of(f"{host}/some/image:1.2"), scheme="http") == DIGEST


@pytest.mark.parametrize("tag", ["9.9", "odd"])
def test_what_a_registry_does_not_know_is_an_error_and_no_digest(tag: str) -> None:
    with registry() as host, pytest.raises(UnknownDigestError, match=host):
        digest_of(Image.of(f"{host}/some/image:{tag}"), scheme="http")


def test_a_registry_that_cannot_be_reached_is_an_error() -> None:
    with pytest.raises(UnknownDigestError, match="does not tell"):
        digest_of(Image("127.0.0.1:1", "some/image", "1"), scheme="http")


def test_images_of_the_hub_are_asked_for_by_their_whole_name() -> None:
    assert Image.of("python:3.11-slim").repository == "library/python"
    assert Image.of(f"prom/prometheus:v2.53.0@{DIGEST}").tag == "v2.53.0"


def test_every_third_party_image_of_the_files_is_found_and_pinned() -> None:
    found = []
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        found += references(text)
        after = pinned(text, lambda _image: DIGEST)
        assert all(each.endswith(f"@{DIGEST}") for each in references(after))
        assert pinned(after, lambda _image: DIGEST) == after
    assert {each.partition(":")[0] for each in found} == {
        *("python", "chrislusf/seaweedfs", "prom/prometheus", "grafana/grafana")
    }


def test_the_services_own_image_is_the_one_that_was_pushed() -> None:
    manifest = Path(ROOT, FILES[-1]).read_text(encoding="utf-8")
    pushed = with_own_image(manifest, "registry.example/ml/cachetier:0.1.0", DIGEST)

    assert f"image: registry.example/ml/cachetier:0.1.0@{DIGEST}\n" in pushed
    assert with_own_image(pushed, "registry.example/ml/cachetier:0.1.0", DIGEST) == pushed
