"""No parser answers any bytes with another exception than its own."""

from __future__ import annotations

import os

import pytest

from tests.faults.counting import count
from tests.faults.slices import SLICES, VARIABLE, everything
from tests.fuzz.contracts import CONTRACTS, Contract, check

EXAMPLES, MANY = 200, 2_000


@pytest.mark.parametrize("name", CONTRACTS)
def test_any_bytes_are_an_answer_or_a_declared_error(
    name: str, request: pytest.FixtureRequest
) -> None:
    examples = MANY if everything() else EXAMPLES
    seed = SLICES if everything() else int(os.environ[VARIABLE])
    check(CONTRACTS[name], seed, examples)
    count(request, "contracts of parsers", 1, seed)


def test_a_parser_that_breaks_its_contract_is_noticed() -> None:
    known: dict[bytes, int] = {}
    broken = Contract(lambda data: known[data], lambda: [b"sound"], (ValueError,))
    with pytest.raises(KeyError):
        check(broken, 1, 50)
