"""One client for the whole process, made at first use, and its calls as functions."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from cachetier_client.client import Client

_lock = threading.RLock()
_default: Client | None = None


def default_client() -> Client:
    """Return the process's client, made from the environment; a closed one is replaced."""
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Client()
        return _default


Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def _of_default(
    method: Callable[Concatenate[Client, Given], Answer],
) -> Callable[Given, Answer]:
    """Return a method of ``Client`` as a function that calls it on the process's client."""

    @functools.wraps(method)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return method(default_client(), *args, **kwargs)

    of_client = inspect.signature(method)
    _self, *parameters = of_client.parameters.values()
    call.__dict__["__signature__"] = of_client.replace(parameters=parameters)
    return call


put_shard = _of_default(Client.put_shard)
checkpoint = _of_default(Client.checkpoint)
seal = _of_default(Client.seal)
wait = _of_default(Client.wait)
flush = _of_default(Client.flush)
steps = _of_default(Client.steps)
latest = _of_default(Client.latest)
get_shard = _of_default(Client.get_shard)
training_step = _of_default(Client.training_step)


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
