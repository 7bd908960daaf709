"""The model of one node must report every bug that is planted here.

Without the bug these are the lives of ``test_tier`` with number 0.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from cachetier.local.local_copy import LocalCopy
from tests.stateful.test_tier import SLOW, Tier

LIVES = settings(SLOW, phases=(Phase.generate,), print_blob=False)


def test_local_bytes_that_are_called_sound_without_a_look_at_their_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bit flips, and is read."""
    monkeypatch.setattr(LocalCopy, "reads_right", LocalCopy.looks_right)

    with pytest.raises(AssertionError, match="verify calls wrong bytes sound"):
        run_state_machine_as_test(seed(0)(type("Tier", (Tier,), {})), settings=LIVES)
