"""Access to a node for whoever runs the tests: the owner, by uid and by the token of the tests."""

from __future__ import annotations

import os
from pathlib import Path

from cachetier.access.access import Access
from cachetier.access.audit import Audit
from cachetier.access.principals import OWNER, principals_of
from cachetier.access.tokens import Tokens

TOKEN = "the-token-of-all-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def owners_access() -> Access:
    """Return what a service has whose settings name nobody."""
    tokens = Tokens(Path(os.devnull) / "none", {OWNER: TOKEN}, now=lambda: 0.0)
    return Access(principals_of((), (), None), tokens, Audit(), open_metrics=True)
