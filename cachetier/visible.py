"""Text from outside as a terminal may show it: nothing in it steers the terminal, or hides.

Names, messages and keys come from services, buckets and files that others wrote.
"""

from __future__ import annotations

import re

# Controls of C0 but tab and newline, DEL and C1; what turns the direction of writing or breaks a
# line unseen; halves of characters, which nobody can write.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return ``text`` with what cannot be seen as escapes: ``\x1b`` for ESC."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Return ``text`` as ``visible`` does, and its tabs and newlines as escapes too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")
