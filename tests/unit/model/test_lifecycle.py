"""Every state meets every event."""

from __future__ import annotations

from itertools import product

import pytest

from cachetier.model.lifecycle import ForbiddenTransitionError, ShardEvent, ShardState, after

DIRTY, CLEAN, EVICTED, QUARANTINED = ShardState

ALLOWED = {
    (DIRTY, ShardEvent.VERIFIED_REMOTELY): CLEAN,
    (DIRTY, ShardEvent.LOCAL_DAMAGE): QUARANTINED,
    (CLEAN, ShardEvent.VERIFIED_REMOTELY): CLEAN,
    (EVICTED, ShardEvent.VERIFIED_REMOTELY): EVICTED,
    (CLEAN, ShardEvent.EVICT): EVICTED,
    (CLEAN, ShardEvent.LOCAL_DAMAGE): EVICTED,
    (CLEAN, ShardEvent.LOST_REMOTELY): DIRTY,
    (EVICTED, ShardEvent.RESTORED): CLEAN,
    (EVICTED, ShardEvent.LOCAL_DAMAGE): EVICTED,
    (QUARANTINED, ShardEvent.RESTORED): DIRTY,
    (QUARANTINED, ShardEvent.LOCAL_DAMAGE): QUARANTINED,
}


@pytest.mark.parametrize(("state", "event"), list(product(ShardState, ShardEvent)))
def test_a_state_and_an_event_lead_to_one_state_or_are_refused(
    state: ShardState, event: ShardEvent
) -> None:
    if (state, event) in ALLOWED:
        assert after(state, event) is ALLOWED[state, event]
    else:
        with pytest.raises(ForbiddenTransitionError):
            after(state, event)


def test_dirty_bytes_can_only_go_clean_or_be_set_aside() -> None:
    """Nothing leads from dirty to evicted but a verified remote copy."""
    reached = {target for (state, _), target in ALLOWED.items() if state is DIRTY}

    assert reached == {CLEAN, QUARANTINED}
