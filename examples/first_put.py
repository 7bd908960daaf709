"""Put one shard and get it back.

Start a service first, in another terminal: `cachetier dev` needs nothing but itself, and says which
CACHETIER_URL to export. Then: python examples/first_put.py
"""

import uuid

from cachetier_client import Client

run = f"first-{uuid.uuid4().hex}"  # a new one each time: a step of a run is saved once
weights = bytes(range(256)) * 4096  # anything contiguous will do: an array, a CPU tensor, ...

with Client(run=run) as client:
    with client.checkpoint(None, step=1) as checkpoint:  # sealed at its end, taken back on an error
        receipt = checkpoint.put(weights, "weights")
    print(f"{receipt.size_bytes} bytes are safe on this node, digest {receipt.digest}")

    assert client.get_shard(None, 1, "weights") == weights

    reached = client.wait(None, 1, level="durable")
    print(f"step 1 is {reached.level}, {reached.age_seconds:.1f} s after it was begun")
