"""The far end: an S3 server, and 35 ms between it and everyone who asks.

SeaweedFS, because it judges checksums and conditions as S3 does.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs


def main() -> None:
    """Write how to reach the server into a file, then serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="examples.demo.remote", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds the objects")
    parser.add_argument("--bucket", required=True, help="bucket to create")
    parser.add_argument("--latency-ms", type=float, required=True, help="wait before each request")
    parser.add_argument("--address", type=Path, required=True, help="file for the variables")
    options = parser.parse_args()
    # Blocked before any thread starts, so that the signal waits for `sigwait` below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with (
        seaweedfs(options.data_dir, bucket=options.bucket) as endpoint,
        S3Proxy(endpoint.url, latency_seconds=options.latency_ms / 1000) as proxy,
    ):
        variables = {**endpoint.behind(proxy.url).environment(), "AWS_ENDPOINT_URL": proxy.url}
        unfinished = options.address.with_suffix(".new")
        unfinished.write_text(json.dumps(variables))
        unfinished.rename(options.address)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
