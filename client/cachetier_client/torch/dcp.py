"""The common part of the writer and the reader: a step's address, and a client when needed."""

from __future__ import annotations

import functools
import os
from typing import Any

from cachetier_client.client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError, InvalidRequestError
from cachetier_client.identity.addresses import SCHEME, address_of_step, parse_step
from cachetier_client.identity.step_names import StepName

DCP_SECONDS = 300.0


class StepStorage:
    """A step that DCP saves to, or loads from.

    It goes to other processes without its client, which each process opens at first use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        client: Client | None,
        url: str | None,
        step_name: str | None,
        timeout_seconds: float,
    ) -> None:
        self.step_name = StepName.chosen(step_name)
        self.timeout_seconds = timeout_seconds
        self.deadline()  # refuses what is none
        self._url = url if client is None else client.url
        self._is_default = client is None and url is None
        self._client = client
        self._own: Client | None = None
        self._came_along = False
        self._where: tuple[str, int] | None = None
        if path is not None:
            self.locate(path)

    def locate(self, path: str | os.PathLike[str]) -> None:
        """Turn to another step."""
        if not os.fspath(path).startswith(f"{SCHEME}://"):
            raise InvalidNameError(
                f"{os.fspath(path)!r} is not the address of a step",
                hint=f"Name a step as {SCHEME}://run/1000; for a directory use DCP's own writer.",
            )
        self._where = parse_step(path, self.step_name)

    @property
    def where(self) -> tuple[str, int]:
        """Run and step."""
        if self._where is None:
            raise InvalidRequestError(
                "no step was named",
                hint="Pass checkpoint_id='cachetier://run/1000' to DCP, or the address here.",
            )
        return self._where

    @property
    def address(self) -> str | None:
        """The step's address; None as long as none was named."""
        return None if self._where is None else self.address_of(self._where)

    def address_of(self, where: tuple[str, int]) -> str:
        """Return a step's address."""
        return address_of_step(*where, self.step_name)

    @property
    def client(self) -> Client:
        """This process's client."""
        if self._client is not None:
            return self._client
        if self._is_default:
            return default_client()
        if self._came_along:
            return _shared_client(self._url)
        if self._own is None:
            self._own = Client(self._url)
        return self._own

    def close(self) -> None:
        """Close the client, if it was opened here."""
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def deadline(self) -> Deadline:
        """Begin the time of a save or a load."""
        return Deadline(self.timeout_seconds, SystemClock())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_own": None, "_came_along": True}


@functools.cache
def _shared_client(url: str | None) -> Client:
    """Return this process's client for what comes from another: nobody closes it, save by save."""
    return Client(url)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the address of a step, with ``cachetier://`` in front."""
    try:
        text = os.fspath(path)
        if not text.startswith(f"{SCHEME}://"):
            return False
        parse_step(text, StepName.chosen())
    except (InvalidNameError, TypeError):
        return False
    return True
