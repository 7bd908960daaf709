"""Tokens are kept hashed, end, are revoked, and are read again when their file changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from cachetier.access.tokens import LEAST_CHARACTERS, LOOK_SECONDS, Token, Tokens, owner_secret
from cachetier.errors import ConfigError, InvalidRequestError


class Time:
    now, monotonic = 1_000_000.0, 0.0


@pytest.fixture
def time() -> Time:
    return Time()


def tokens_in(folder: Path, time: Time) -> Tokens:
    return Tokens(
        folder / "tokens.json",
        {"owner": "secret-of-the-owner", "scraper": "secret-of-prometheus"},
        now=lambda: time.now,
        monotonic=lambda: time.monotonic,
    )


def test_a_token_opens_for_its_principal_and_is_kept_hashed(tmp_path: Path, time: Time) -> None:
    tokens = tokens_in(tmp_path, time)
    made, secret = tokens.create("team", None)
    assert tokens.find(secret) == made
    assert made.principal == "team"
    assert tokens.find(secret + "x") is tokens.find("") is None
    kept = (tmp_path / "tokens.json").read_text()
    assert secret not in kept
    assert secret.rpartition("_")[2] not in kept
    assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert "sha256" not in made.as_json()


def test_the_tokens_of_the_settings_are_none_of_the_file(tmp_path: Path, time: Time) -> None:
    tokens = tokens_in(tmp_path, time)
    found = tokens.find("secret-of-the-owner")
    assert found is not None
    assert found.principal == "owner"
    scraper = tokens.find("secret-of-prometheus")
    assert scraper is not None
    assert scraper.principal == "scraper"
    assert tokens.list() == []


def test_what_was_read_counts_while_somebody_reads_the_file_again(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, secret = tokens_in(tmp_path, time).create("team", None)
    tokens = tokens_in(tmp_path, time)
    (tmp_path / "tokens.json").write_text('{"tokens": []}')
    time.monotonic += LOOK_SECONDS
    assert (tokens.is_due(), tokens.is_due()) == (True, False), "one of them looks"

    def read(path: Path) -> dict[str, Token]:
        assert tokens.find(secret) == made, "nobody waits for the disk"
        return {}

    monkeypatch.setattr("cachetier.access.tokens._read", read)
    tokens.look()
    assert tokens.find(secret) is None


def test_a_token_ends_when_it_was_said_to(tmp_path: Path, time: Time) -> None:
    tokens = tokens_in(tmp_path, time)
    _, secret = tokens.create("team", 60.0)
    time.now += 59.9
    assert tokens.find(secret)
    time.now += 0.1
    assert tokens.find(secret) is None


def test_a_revoked_token_opens_nothing_from_then_on(tmp_path: Path, time: Time) -> None:
    tokens = tokens_in(tmp_path, time)
    made, secret = tokens.create("team", None)
    _, other = tokens.create("team", None)
    tokens.revoke(made.id)
    assert tokens.find(secret) is None
    assert tokens.find(other)
    with pytest.raises(InvalidRequestError, match="there is no token"):
        tokens.revoke(made.id)


def test_a_file_that_somebody_else_changed_is_read_again(tmp_path: Path, time: Time) -> None:
    tokens, elsewhere = tokens_in(tmp_path, time), tokens_in(tmp_path, time)
    assert tokens.find("nothing yet") is None
    made, secret = elsewhere.create("team", None)
    assert tokens.find(secret) is None
    time.monotonic += LOOK_SECONDS
    assert tokens.find(secret) == made
    elsewhere.revoke(made.id)
    time.monotonic += LOOK_SECONDS
    assert tokens.find(secret) is None


def test_two_who_write_the_file_lose_no_token(tmp_path: Path, time: Time) -> None:
    one, two = tokens_in(tmp_path, time), tokens_in(tmp_path, time)
    secrets = [each.create("team", None)[1] for each in (one, two, one, two)]
    time.monotonic += LOOK_SECONDS
    assert all(one.find(each) and two.find(each) for each in secrets)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tokens": [1]}', '{"tokens": [{"id": 1}]}', "[" * 100_000]
)
def test_a_file_that_is_none_changes_nothing_and_is_told(
    tmp_path: Path, time: Time, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_in(tmp_path, time)
    _, secret = tokens.create("team", None)
    (tmp_path / "tokens.json").write_text(text)
    time.monotonic += LOOK_SECONDS
    with caplog.at_level(logging.ERROR):
        assert tokens.find(secret)
    assert "cannot be read; the earlier ones stay valid" in caplog.text


def test_a_file_that_cannot_be_read_is_tried_again_and_never_written_over(
    tmp_path: Path, time: Time
) -> None:
    tokens, file = tokens_in(tmp_path, time), tmp_path / "tokens.json"
    made, secret = tokens.create("team", None)
    whole = file.read_text()
    file.write_text("{")
    with pytest.raises(ConfigError, match="cannot change the tokens"):
        tokens.create("team", None)
    assert file.read_text() == "{"

    file.write_text(whole)
    tokens.revoke(made.id)
    assert tokens.find(secret) is None


def test_a_file_of_tokens_may_be_a_link_as_a_mounted_secret_is(tmp_path: Path, time: Time) -> None:
    _, secret = tokens_in(tmp_path, time).create("team", None)
    (tmp_path / "tokens.json").rename(tmp_path / "mounted")
    (tmp_path / "tokens.json").symlink_to(tmp_path / "mounted")
    assert tokens_in(tmp_path, time).find(secret)


def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path, time: Time) -> None:
    _, secret = tokens_in(tmp_path, time).create("team", None)
    (tmp_path / "tokens.json").chmod(0o666)
    assert tokens_in(tmp_path, time).find(secret) is None
    (tmp_path / "tokens.json").chmod(0o644)
    assert tokens_in(tmp_path, time).find(secret)


def test_ends_that_are_no_numbers_are_refused(tmp_path: Path, time: Time) -> None:
    _, secret = tokens_in(tmp_path, time).create("team", 60.0)
    kept = json.loads((tmp_path / "tokens.json").read_text())
    kept["tokens"][0]["expires_at"] = "never"
    (tmp_path / "tokens.json").write_text(json.dumps(kept))
    assert tokens_in(tmp_path, time).find(secret) is None


def test_the_first_start_makes_the_owners_token_and_later_ones_keep_it(tmp_path: Path) -> None:
    made = owner_secret(tmp_path)
    assert len(made) > 40
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert owner_secret(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_an_owners_token_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * LEAST_CHARACTERS)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read or write it"):
        owner_secret(tmp_path)
    file.chmod(0o600)
    assert owner_secret(tmp_path) == "x" * LEAST_CHARACTERS
    file.write_text("x" * (LEAST_CHARACTERS - 1))
    with pytest.raises(ConfigError, match="too short"):
        owner_secret(tmp_path)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot use the token"):
        owner_secret(tmp_path)
