"""Settings that the node and each of its replicas have alike, with their checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from cachetier.grammars import remote_of, url_of
from cachetier.model.compression import parsed_mode


def _readable_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a check that a text is one which ``parse`` takes; the text itself stays."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)

Remote = Annotated[str, _readable_by(remote_of)]
Compression = Annotated[str, _readable_by(parsed_mode)]
OptionalText = Annotated[str | None, EmptyIsNone]
OptionalUrl = Annotated[Annotated[str, AfterValidator(url_of)] | None, EmptyIsNone]
