"""The harness itself: ranks agree on a model's state, and a rank's failure is told."""

from __future__ import annotations

import torch.distributed as dist

from tests.frameworks.ranks import Failed, Job, run_ranks
from tests.frameworks.training import Training, digest_of_state


def trained(steps: int) -> str:
    training = Training()
    for seed in range(steps):
        training.step(seed)
    return digest_of_state(training.state())


def failing_on_rank_1() -> int:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 will not")
    return dist.get_rank()


def test_ranks_train_one_model_and_see_one_state() -> None:
    first, second = run_ranks(trained, 2, steps=2)

    assert first == second


def test_what_a_rank_raises_comes_back_by_name() -> None:
    results = Job(failing_on_rank_1, 2).results()

    assert results == [0, Failed("ValueError", "rank 1 will not")]
