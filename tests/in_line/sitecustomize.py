"""Drains of real services that do not step behind everybody else.

Python imports this at its start when the folder is in ``PYTHONPATH``: ``forked_drains.in_line``.
"""

from __future__ import annotations

import sys

if "cachetier.drain.process" in sys.orig_argv:
    from tests.forked_drains import stay_in_line

    stay_in_line()
