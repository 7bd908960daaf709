"""Save the files of a directory as a step, all at once, and bring them back, from asyncio.

Start a service first, in another terminal: `cachetier dev` needs nothing but itself, and says which
CACHETIER_URL to export. Then, with `pip install aiofiles`: python examples/async_copy.py DIRECTORY
"""

import asyncio
import sys
import tempfile
import uuid
from pathlib import Path

from cachetier_client.aio import AsyncClient

STEP = 1


async def save_and_restore(files: dict[str, Path], target: Path) -> None:
    run = f"files-{uuid.uuid4().hex}"  # a new one each time: a step of a run is saved once
    async with AsyncClient(run=run) as client:
        # Sealed once all tasks have ended; one that fails ends the others, and then all goes back.
        async with client.checkpoint(None, STEP) as checkpoint, asyncio.TaskGroup() as puts:
            for name, path in files.items():
                puts.create_task(checkpoint.put_file(path, name))
        sizes = [receipt.size_bytes for receipt in checkpoint.blocking.receipts.values()]
        print(f"{len(sizes)} files, {sum(sizes)} bytes, are safe on this node")

        reached = await client.wait(None, STEP, level="durable")
        print(f"step {STEP} is {reached.level}, {reached.age_seconds:.1f} s after it was begun")

        async with asyncio.TaskGroup() as gets:
            for name in files:
                gets.create_task(client.get_file(None, STEP, name, target / name))
    for name, path in files.items():
        assert (target / name).read_bytes() == path.read_bytes()
    print("every file came back as it was")


if __name__ == "__main__":
    found = {path.name: path for path in Path(sys.argv[1]).iterdir() if path.is_file()}
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(save_and_restore(found, Path(made)))
