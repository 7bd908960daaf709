"""What others wrote is as they published it, with its licence, and pages load nothing else."""

from __future__ import annotations

import hashlib
import re

import pytest

from cachetier.console.rendering import POLICY, STATIC, rendered, static_files, static_url

VENDOR = STATIC / "vendor"
TEMPLATES = STATIC.parent / "templates"
ROW = re.compile(r"^\| (\S+) \| .+? \| \w+, (\S+) \| ([0-9a-f]{64}) \|$", re.MULTILINE)
ROWS = ROW.findall((VENDOR / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "licence", "digest"), ROWS)
def test_a_vendored_file_is_as_it_was_published(name: str, licence: str, digest: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    assert (VENDOR / licence).read_text(encoding="utf-8").strip()


def test_every_vendored_file_is_listed() -> None:
    there = {path.name for path in VENDOR.iterdir()} - {"README.md"}
    assert there == {name for name, _, _ in ROWS} | {licence for _, licence, _ in ROWS}


def test_pages_have_no_script_no_style_and_no_address_of_others_inside() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<script(?! (defer )?src=)|<style|\sstyle=|\son\w+=", text), path
        assert not re.search(r'(src|href|hx-\w+)="(https?:)?//', text), path
    assert "unsafe" not in POLICY


def test_a_static_file_has_an_address_of_its_own_version() -> None:
    for name in static_files():
        assert re.fullmatch(rf"/console/static/{re.escape(name)}\?[0-9a-f]{{8}}", static_url(name))
    assert "vendor/README.md" not in static_files()


def test_what_values_hold_is_no_markup() -> None:
    page = rendered("troubles.html", troubles=["<script>alert(1)</script>"])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
