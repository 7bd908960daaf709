"""The plane split: all first bytes of the elements, then all second ones, and so on.

Numbers of like size share sign and exponent, so that those bytes, side by side, compress; the
others are noise whatever their order. What is no whole element at the end stays as it is, there.

Source: docs/compression.md, "Planes".
"""

from __future__ import annotations

from cachetier_client.bucket_format.stored import ELEMENT_SIZES

from cachetier.errors import IntegrityError


def split(block: bytes | memoryview, element_size: int) -> bytes:
    """Return ``block`` with the planes of its elements one after the other."""
    data = bytes(block)  # slicing bytes is many times as fast as slicing a view
    whole = len(data) - len(data) % element_size
    planes = [data[place:whole:element_size] for place in range(element_size)]
    return b"".join((*planes, data[whole:]))


def join(planes: bytes | memoryview, element_size: int) -> bytearray:
    """Undo ``split``; the result has the size of ``planes``, whatever they are.

    Raises:
        IntegrityError: There are no elements of that size.
    """
    if element_size not in ELEMENT_SIZES:
        raise IntegrityError(f"there are no elements of {element_size} bytes")
    count, rest = divmod(len(planes), element_size)
    whole = count * element_size
    block = bytearray(len(planes))
    for place in range(element_size):
        block[place:whole:element_size] = planes[place * count : (place + 1) * count]
    block[whole:] = planes[len(planes) - rest :]
    return block
