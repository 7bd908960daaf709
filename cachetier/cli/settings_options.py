"""One option for each setting, as ``serve`` has them, for other verbs that read the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def taking_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Return ``verb`` with the options of ``serve``.

    It is called with ``flags``, a value or None for each setting, ``config``, the file that was
    named, and with its own parameters, which must have defaults.
    """
    from cachetier.cli.serve import serve

    own = inspect.signature(verb, eval_str=True).parameters
    offered = inspect.signature(serve, eval_str=True).parameters
    names = [name for name in offered if name not in ("config", "as_json")]

    def taken(**values: Any) -> None:
        flags = {name: values.pop(name) for name in names}
        verb(flags=flags, **values)

    taken.__doc__ = verb.__doc__
    taken.__name__ = verb.__name__
    both = [each for name, each in own.items() if name not in ("flags", "config")]
    both += [each for name, each in offered.items() if name != "as_json"]
    taken.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    taken.__annotations__ = {each.name: each.annotation for each in both}
    return taken
