"""An audit that asked nobody is no audit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools.audit import FOUND, LOCKED, NOT_ASKED, ROOT, judged

SOUND = {"name": "apsw", "version": "3.51.3", "vulns": []}
ILL = {
    "name": "urllib3",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([SOUND], 0, "1 requirements audited, 0 known vulnerabilities"),
        ([SOUND, ILL], FOUND, "urllib3 1.0: PYSEC-1, mended in 1.1"),
        ([SOUND, SKIPPED], NOT_ASKED, "not audited: rich: Dependency not found"),
        ([SKIPPED], NOT_ASKED, "no audit, as the vulnerability service did not answer"),
        ([], NOT_ASKED, "did not answer: no route to host"),
    ],
)
def test_only_what_was_looked_up_counts(
    dependencies: list[dict[str, Any]], code: int, said: str
) -> None:
    complaint = "" if dependencies else "no route to host"
    text, ended = judged(dependencies, complaint)

    assert ended == code
    assert said in text


def test_of_two_files_both_must_have_been_read() -> None:
    assert judged([SOUND], "it broke off")[1] == NOT_ASKED


def test_what_the_image_and_the_build_install_is_audited_with_the_rest() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        return set(re.findall(r"^([\w.-]+==[\w.!+-]+)", text, re.MULTILINE))

    assert pins("service.txt") | pins("build.txt") <= pins("dev.txt")
    assert {"dev.txt", "audit.txt"} <= set(LOCKED)
