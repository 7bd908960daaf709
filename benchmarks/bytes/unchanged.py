"""A second checkpoint of which a tenth of the blocks is new: how much of it is sent?

Counted where it arrives, in the bodies of requests, documents included.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from cachetier_client import Client

from benchmarks.bytes.payloads import filled, gaussian_fp32
from benchmarks.bytes.sizes import sizes_of
from benchmarks.bytes.stamped import change, stamp
from benchmarks.drain.remote import put_held, seconds_until_durable, sink
from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench

MODES = ("off", "zstd:1")
RULES = json.dumps({f"{mode.replace(':', '-')}.*": mode for mode in MODES})
CHANGED_SHARE = 0.1


def measure(bench: Bench) -> list[Result]:
    return list(_measured(bench))


def _measured(bench: Bench) -> Iterator[Result]:
    size_bytes = sizes_of(bench).unchanged_bytes
    body = filled(gaussian_fp32(), size_bytes)
    settings = {"compression": RULES, "remote_assume": "checksum"}
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint, settings=settings) as service,
        Client(service.url) as client,
    ):
        for mode in MODES:
            run = f"{mode.replace(':', '-')}.unchanged"
            put_held(client, run, 1, iter([stamp(body, run)]))
            seconds_until_durable(client, run, 1)
            before = remote.counts().bytes
            changed = change(body, CHANGED_SHARE, seed=11)
            put_held(client, run, 2, iter([body]))
            seconds = seconds_until_durable(client, run, 2)
            sent = (remote.counts().bytes - before) / size_bytes
            bench.say(f"{mode}: {changed} blocks changed, {sent:.3f} sent, {seconds:.2f} s")
            what = f"a second checkpoint with 10 % of its blocks changed, {mode}: bytes sent / size"
            yield Result(what, sent, "", at_most(0.15), (sent,))
