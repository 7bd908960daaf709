"""A scenario, run: nodes, store and trainings are put together, and time passes.

Source: docs/design/0032-simulation.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from cachetier_client.bucket_format.layout import Layout

from cachetier.drain.schedule.queue_state import Weights
from cachetier.model.backpressure import WhenFull
from cachetier.model.bandwidth import Bandwidth
from cachetier.reclaim.evict import Watermarks
from cachetier.simulate.bucket import SimulatedObjects
from cachetier.simulate.events import Events
from cachetier.simulate.node_drain import DrainSetup, World
from cachetier.simulate.outcome import Recorder, SimulatedOutcome
from cachetier.simulate.requests import SimulatedPlace
from cachetier.simulate.scenario import Loss, Scenario, ScenarioRun
from cachetier.simulate.store import SimulatedStore
from cachetier.simulate.strands import Strands
from cachetier.simulate.tier import Tier, TierSetup
from cachetier.simulate.training import SimulatedTraining

LOOKS = 240


def simulate(
    scenario: Scenario, on_progress: Callable[[float], None] = lambda _now: None
) -> SimulatedOutcome:
    """Run ``scenario`` and return what came of it, the same each time.

    ``on_progress`` hears how far it is, in simulated seconds.
    """
    simulation = _Simulation(scenario)
    for look in range(1, LOOKS + 1):
        now = scenario.duration * look / LOOKS
        simulation.events.run(now)
        simulation.recorder.look(now)
        on_progress(now)
    return simulation.recorder.outcome(scenario.about, scenario.seed)


class _Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self.events = Events()
        self._scenario = scenario
        self._chance = random.Random(scenario.seed)
        limits, events = scenario.store, self.events
        store = SimulatedStore(
            events, limits.writes_per_second, limits.reads_per_second, away=self._is_away
        )
        for each in limits.throttling:
            slower = partial(store.limit, each.writes_per_second, each.reads_per_second)
            as_before = partial(store.limit, limits.writes_per_second, limits.reads_per_second)
            events.after(each.at, slower)
            events.after(each.at + each.lasts, as_before)
        self._world = World(events, Strands(events), store, SimulatedObjects())
        self._nodes: dict[str, list[Tier]] = {}
        self._trainings = self._begun()
        self.recorder = Recorder(self._trainings)
        self.recorder.nodes += [node for nodes in self._nodes.values() for node in nodes]
        for loss in scenario.losses:
            events.after(loss.at, partial(self._lose, loss))

    def _is_away(self, now: float) -> bool:
        return any(each.at <= now < each.at + each.lasts for each in self._scenario.store.outages)

    def _begun(self) -> list[SimulatedTraining]:
        ranks, runs = self._scenario.nodes.ranks, self._scenario.runs
        for run in runs:
            if run.on is None:
                self._nodes[run.name] = [self._node(run) for _ in range(run.nodes)]
        return [
            SimulatedTraining(self.events, run, self._nodes[run.on or run.name], ranks)
            for run in runs
        ]

    def _node(self, run: ScenarioRun) -> Tier:
        settings, nodes = self._scenario.settings, self._scenario.nodes
        chance = random.Random(self._chance.random())
        place = SimulatedPlace(
            chance.uniform(*nodes.latency_ms) / 1000, nodes.each_connection, nodes.link
        )
        drain = DrainSetup(
            place,
            Layout(run.prefix, settings.key_layout == "spread"),
            Bandwidth(settings.max_rate),
            Weights(tuple((each.name, each.weight) for each in self._scenario.runs)),
        )
        setup = TierSetup(
            drain,
            nodes.nvme,
            settings.capacity,
            settings.policy,
            WhenFull(settings.when_full),
            Watermarks(settings.high_watermark, settings.low_watermark),
            settings.put_timeout,
        )
        return Tier(self._world, setup, chance, self._published)

    def _published(self, run: str, step: int, save_id: str) -> None:
        for training in self._trainings:
            if training.run.name == run:
                training.published(step, save_id)

    def _lose(self, loss: Loss) -> None:
        nodes = self._nodes[loss.run]
        nodes[loss.node].lose()
        stopped = [each for each in self._trainings if each.nodes is nodes]
        for training in stopped:
            training.stop()
        self.events.after(loss.back_after, partial(self._replace, loss, stopped))

    def _replace(self, loss: Loss, stopped: list[SimulatedTraining]) -> None:
        (run,) = (each for each in self._scenario.runs if each.name == loss.run)
        node = self._nodes[loss.run][loss.node] = self._node(run)
        self.recorder.nodes.append(node)
        for training in stopped:
            training.restart(loss.at)
