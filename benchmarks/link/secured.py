"""Drain and cold restore over TLS, as S3 is in earnest, beside boto3 and the CRT client.

The same link of slow connections, and a sink with a certificate. It decrypts every byte, so it
takes more of the processor than without, whoever sends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.drain.remote import RunningSink, sink
from benchmarks.link import draining, restoring
from benchmarks.link.peers import Peer
from benchmarks.link.sizes import sizes_of
from benchmarks.measures import Result
from benchmarks.scratch import Bench
from tests.integration.certificates import Authority

WHERE = f"{draining.WHERE}, TLS"
# Of peers the first counts; a node of the benches sees no variable that begins with AWS_.
TRUSTED = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


def measure(bench: Bench) -> list[Result]:
    threads = sizes_of(bench).threads[-1]
    peers = [Peer("boto3", threads), Peer("CRT client", 0)]
    with _secured(bench.directory) as (ours, theirs):
        drained, _ = draining.plain(bench, ours, peers, WHERE)
        ours.forget()
        for remote in (ours, theirs):
            remote.keep()
        return drained + restoring.over_slow_connections(bench, ours, theirs, peers, WHERE)


@contextmanager
def _secured(directory: Path) -> Iterator[tuple[RunningSink, RunningSink]]:
    """Run two sinks with a certificate that this process and its children trust."""
    authority = Authority(directory / "authority")
    issued = authority.issue("sink")
    files = issued.certificate, issued.key
    trusted = dict.fromkeys(TRUSTED, str(authority.ca))
    with patch.dict(os.environ, trusted), sink(*files) as ours, sink(*files) as theirs:
        yield ours, theirs
