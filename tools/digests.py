"""``make digests``: have the files of ``deploy/`` name their images by digest, as a registry does.

A tag can be moved to another image; a digest cannot. Digests are asked for where there is a
network, and never made up: where one cannot be had nothing is written. With
``IMAGE=registry/cachetier:0.1.0`` the service's own image, once it is pushed, is put into the
Kubernetes manifest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    "docker-compose.yml",
    "deploy/Dockerfile",
    "deploy/kubernetes.yml",
    "deploy/kubernetes-leave.yml",
    "deploy/host-directories.patch.yml",
)
OWN = re.compile(r"(?:[\w.:/-]+/)?cachetier:[\w.-]+(?:@sha256:[0-9a-f]{64})?")
_OWN_LINE = re.compile(rf"^( +image: ){OWN.pattern}$", re.MULTILINE)
SECONDS = 30.0
_HUB = "registry-1.docker.io"
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_NAMED = re.compile(r"(?:_IMAGE:-|ARG BASE_IMAGE=|image: )([^\s${}]+)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class UnknownDigestError(Exception):
    """A registry did not tell a digest; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Image:
    """A reference such as ``grafana/grafana:12.3.1``, without any digest."""

    host: str
    repository: str
    tag: str

    @classmethod
    def of(cls, reference: str) -> Image:
        plain = reference.partition("@")[0]
        name, _, tag = plain.rpartition(":")
        first, slash, rest = name.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return cls(first, rest, tag)
        return cls(_HUB, name if slash else f"library/{name}", tag)


def references(text: str) -> list[str]:
    """Return the images that a file names, each once, but not the service's own."""
    return [each for each in dict.fromkeys(_NAMED.findall(text)) if not OWN.fullmatch(each)]


def pinned(text: str, digest_of: Callable[[Image], str]) -> str:
    """Return a file's text with the digest of each image behind its tag."""
    for reference in references(text):
        plain = reference.partition("@")[0]
        text = text.replace(reference, f"{plain}@{digest_of(Image.of(reference))}")
    return text


def with_own_image(text: str, reference: str, digest: str) -> str:
    """Return the manifest's text with the service's own image, as it was pushed."""
    return _OWN_LINE.sub(rf"\g<1>{reference.partition('@')[0]}@{digest}", text)


def digest_of(image: Image, *, scheme: str = "https") -> str:
    """Ask the registry for the digest of a tag.

    Raises:
        UnknownDigestError: It does not answer, or does not know the tag.
    """
    url = f"{scheme}://{image.host}/v2/{image.repository}/manifests/{image.tag}"
    try:
        try:
            found = _head(url, "")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            found = _head(url, _token(error.headers.get("WWW-Authenticate", "")))
    except (OSError, ValueError) as error:
        what = f"{image.host} does not tell the digest of {image.repository}:{image.tag}"
        raise UnknownDigestError(f"{what}: {error}") from None
    if not _DIGEST.fullmatch(found):
        raise UnknownDigestError(f"{image.host} gave {found!r}, which is no digest")
    return found


def _head(url: str, token: str) -> str:
    headers = {"Accept": ", ".join(_KINDS)} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(answer.headers.get("Docker-Content-Digest", ""))


def _token(challenge: str) -> str:
    """Return the token for whoever may pull: a registry says where one asks for it."""
    told = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = "&".join(f"{name}={told[name]}" for name in ("service", "scope") if name in told)
    with urllib.request.urlopen(f"{told.get('realm', '')}?{query}", timeout=SECONDS) as answer:
        document = json.load(answer)
    return str(document.get("token") or document.get("access_token", ""))


def main() -> int:
    """Rewrite the files, all or none."""
    parser = argparse.ArgumentParser(prog="make digests", description=__doc__)
    parser.add_argument("--image", default="", help="the service's own, as it was pushed")
    options = parser.parse_args()
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    try:
        made = {name: pinned(text, digest_of) for name, text in texts.items()}
        if options.image:
            own = digest_of(Image.of(options.image))
            manifest = FILES[-1]
            made[manifest] = with_own_image(made[manifest], options.image, own)
    except UnknownDigestError as error:
        hint = "Run it where the registries can be reached; nothing was written."
        sys.stderr.write(f"Error: {error}.\nNext: {hint}\n")
        return 1
    for name, text in made.items():
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
