"""Where settings come from, which one wins, and how a wrong one is told."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from cachetier.config.settings import NAMED, SETTINGS, load, sourced
from cachetier.config.sources import RENAMED
from cachetier.errors import ConfigError
from cachetier.model.backpressure import WhenFull

ROOT = Path(__file__).parents[3]
LEAST = {"cache_dir": "/data/cache", "remote": "s3://bucket/prefix"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no cachetier.toml lies, and nobody has set a token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHETIER_TOKEN")


def failure(**flags: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load({**LEAST, **flags})
    return caught.value


# --- sources -------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = load(LEAST)
    assert settings.capacity == "80%"
    assert settings.socket_path == Path("/data/cache/cachetier.sock")
    assert settings.socket_permissions == 0o600
    assert settings.http_address == ("127.0.0.1", 7070)
    assert settings.token is None
    assert (settings.durable.bucket, settings.durable.prefix) == ("bucket", "prefix")
    assert settings.when_full is WhenFull.WAIT
    assert settings.durable.conditional_writes
    assert not settings.allow_volatile


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('capacity = "1 GB"\ngrace = "1s"\ndrain_workers = 1\n')
    monkeypatch.setenv("CACHETIER_CAPACITY", "2 GB")
    monkeypatch.setenv("CACHETIER_GRACE", "2s")
    settings = load({**LEAST, "capacity": "3 GB", "log": None}, config=file)
    assert settings.capacity == "3 GB"
    assert settings.grace == 2.0
    assert settings.drain_workers == 1
    assert settings.log == "info"


def test_the_file_is_found_by_flag_then_variable_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flag", "variable", "cachetier"):
        (tmp_path / f"{name}.toml").write_text(f'remote.region = "{name}"\n')
    assert load(LEAST).remote.region == "cachetier"
    monkeypatch.setenv("CACHETIER_CONFIG", str(tmp_path / "variable.toml"))
    assert load(LEAST).remote.region == "variable"
    assert load(LEAST, config=tmp_path / "flag.toml").remote.region == "flag"


def test_everything_can_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(
        'cache_dir = "/c"\nremote.url = "s3://bucket"\n'
        'allowed_uids = [1000, 1001]\nhttp = ""\ntoken = "sixteen-letters!"\n'
        'remote.assume = "unconditional"\n'
        'when_full = "reject"\nwatermarks = [0.4, 0.5]\n'
    )
    file.chmod(0o600)
    settings = load(config=file)
    assert settings.allowed_uids == {1000, 1001}
    assert settings.http_address is None
    assert settings.token is not None
    assert settings.token.reveal() == "sixteen-letters!"
    assert not settings.durable.conditional_writes


def test_weights_of_runs_are_a_table_or_json_and_the_first_that_matches_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cachetier.toml").write_text('[run_weights]\n"big-*" = 4\n"*" = 0.5\n')
    assert list(load(LEAST).run_weights.items()) == [("big-*", 4.0), ("*", 0.5)]
    monkeypatch.setenv("CACHETIER_RUN_WEIGHTS", '{"big-*": 2}')
    assert load(LEAST).run_weights == {"big-*": 2.0}
    monkeypatch.setenv("CACHETIER_RUN_WEIGHTS", "")
    assert load(LEAST).run_weights == {}


@pytest.mark.parametrize("text", ["big=4", "[4]", '{"big": 0}', '{"big": "much"}'])
def test_weights_that_are_none_are_refused_with_an_example(text: str) -> None:
    assert "`run_weights` from --set run_weights: " in failure(run_weights=text).message


@pytest.mark.parametrize(
    ("name", "value"),
    [("durable_every", 0), ("keep_local", -1), ("notice", "-1s"), ("durable_every", "often")],
)
def test_policies_have_bounds(name: str, value: object) -> None:
    assert f"`{name}` from" in failure(**{name: value}).message


def test_variables_of_the_client_and_the_tools_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("URL", "RUN", "SAVE_ID", "FALLBACK", "ACCEPTANCE", "BENCH_SIZE"):
        monkeypatch.setenv(f"CACHETIER_{name}", "anything")
    load(LEAST)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load(LEAST).capacity = "1"  # type: ignore[misc]


def test_a_token_is_never_shown() -> None:
    assert "canary" not in repr(load({**LEAST, "token": "canary-of-sixteen"}))


# --- what is wrong, and who said it --------------------------------------------------------------


@pytest.mark.parametrize("name", ["cache_dir", "remote"])
def test_what_must_be_given_is_asked_for(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({key: value for key, value in LEAST.items() if key != name})
    assert name in caught.value.message
    assert f"CACHETIER_{name.upper()}" in caught.value.hint


def test_an_unknown_key_names_its_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('# hello\n\ncapacty = "1 GB"\n')
    with pytest.raises(ConfigError) as caught:
        load(LEAST, config=file)
    assert "`capacty`" in caught.value.message
    assert "line 3" in caught.value.message
    assert "did you mean capacity" in caught.value.message


def test_an_unknown_variable_names_the_nearest_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_CACHEDIR", "/c")
    error = failure()
    assert "CACHETIER_CACHEDIR" in error.message
    assert "did you mean CACHETIER_CACHE_DIR" in error.message


def test_a_table_is_an_unknown_key(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[remotes]\nurl = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(LEAST, config=file)
    assert "`remotes`" in caught.value.message


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"capacity = \n", "line 1"), (b"a = 1\nb = =\n", "line 2"), (b"x = 1\n\xff\n", "line 2")],
)
def test_a_file_that_cannot_be_parsed_names_the_line(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(LEAST, config=file)
    assert str(file) in caught.value.message
    assert words in caught.value.message


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError) as caught:
            load(LEAST, config=path)
        assert str(path) in caught.value.message


def test_a_bad_value_names_who_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    file.write_text('\nhttp = "nowhere"\n')
    with pytest.raises(ConfigError) as caught:
        load(LEAST, config=file)
    assert f"{file}, line 2" in caught.value.message
    monkeypatch.setenv("CACHETIER_HTTP", "nowhere:x")
    assert "CACHETIER_HTTP" in failure().message
    assert "--http" in failure(http="nowhere:y").message


BAD_VALUES = [
    ("capacity", "3 parsecs"),
    ("capacity", "0"),
    ("capacity", "0%"),
    ("capacity", "101%"),
    ("capacity", "-1 GB"),
    ("capacity", ""),
    ("allowed_uids", "root"),
    ("allowed_uids", "1,-x"),
    ("http", "7070"),
    ("http", "127.0.0.1"),
    ("http", "127.0.0.1:99999"),
    ("http", ":7070"),
    ("remote", "bucket/prefix"),
    ("remote", "s3://"),
    ("remote", "s3:///prefix"),
    ("remote", "s3://bucket/../other"),
    ("remote", "s3://bucket/a//b"),
    ("remote", "s3://bucket/a b"),
    ("remote_endpoint", "localhost:8333"),
    ("remote_assume", "trust"),
    ("remote_assume", "path,virtual"),
    ("when_full", "panic"),
    ("compression", "zstd:0"),
    ("compression", "zstd:20"),
    ("compression", "zstd"),
    ("compression", "gzip"),
    ("compression", "gzip"),
    ("watermarks", "0.5,1.5"),
    ("watermarks", "0.95,0.9"),
    ("watermarks", "0.9"),
    ("max_rate", "1 GB/s,2 GB/s"),
    ("drain_workers", "0"),
    ("drain_cores", "0"),
    ("drain_cores", "many"),
    ("drain_cores", "2 of"),
    ("drain_cores", "of 99999"),
    ("grace", "30"),
    ("log", "loud"),
    ("log", "info:"),
    ("log", ":json"),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    error = failure(**{name: value})
    assert name in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("text", "mode"),
    [("off", "off"), ("false", "off"), ("AUTO", "auto"), ("ZSTD:19", "zstd:19")],
)
def test_compression_is_a_mode_for_every_shard(text: str, mode: str) -> None:
    assert str(load({**LEAST, "compression": text}).rules.mode_of("run", "name")) == mode


def test_rules_choose_the_compression_of_runs_and_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[compression]\n"*/optim*" = "planes:1"\na = "off"\n"*" = "auto"\n')
    rules = load(LEAST, config=file).rules
    assert str(rules.mode_of("a", "optim-0")) == "planes:1"
    assert str(rules.mode_of("a", "model")) == "off"
    assert str(rules.mode_of("b", "model")) == "auto"

    monkeypatch.setenv("CACHETIER_COMPRESSION", '{"big-*": "zstd:3"}')
    assert str(load(LEAST).rules.mode_of("big-1", "model")) == "zstd:3"


def test_a_rule_with_a_wrong_mode_is_named() -> None:
    message = failure(compression={"big-*": "gzip"}).message

    assert "compression" in message
    assert "'big-*'" in message
    assert "'zstd:1' to 'zstd:19'" in message


def test_a_cpu_that_is_not_there_is_named_beside_those_that_are() -> None:
    message = failure(drain_cores="of 0,99998-99999").message

    assert "drain_cores" in message
    assert "99998-99999" in message
    assert "this service, only " in message


def test_a_socket_path_beyond_the_systems_limit_is_refused() -> None:
    assert "107" in failure(socket="/" + "s" * 107).message
    assert "`socket`" in failure(cache_dir="/" + "c" * 100).message
    load({**LEAST, "socket": "/" + "s" * 106})


def test_relative_paths_count_from_here(tmp_path: Path) -> None:
    settings = load({**LEAST, "cache_dir": "cache", "socket": "s"})
    assert settings.cache_dir == tmp_path / "cache"
    assert settings.socket_path == tmp_path / "s"


# --- what they mean ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80%", 800),
        ("12.5%", 125),
        ("100%", 1000),
        ("200000000", 200 * 10**6),
        ("200000000 B", 200 * 10**6),
        ("70000kB", 70 * 10**6),
        ("64 MiB", 1 << 26),
        ("200 GB", 200 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("2t", 2 * 10**12),
    ],
)
def test_a_capacity_is_a_size_or_a_share(text: str, size_bytes: int) -> None:
    assert load({**LEAST, "capacity": text}).capacity_bytes(1000) == size_bytes


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("node-7:1", ("node-7", 1)),
    ],
)
def test_http_is_an_address_or_off(text: str, address: tuple[str, int] | None) -> None:
    given = text and f"http://{text}"
    assert load({**LEAST, "http": given}).http_address == address


@pytest.mark.parametrize("text", ["0.0.0.0:7070", "[::]:7070", "node-7:1"])
def test_a_door_open_to_other_machines_wants_tls_or_a_word_that_it_does_not(text: str) -> None:
    assert "`http` to 'http://" in failure(http=text).message
    assert load({**LEAST, "http": f"http://{text}"}).http_address
    assert load({**LEAST, "http": text, "tls": "/c,/k"}).http_address


def test_a_socket_for_others_is_open_to_all_whom_the_kernel_names() -> None:
    assert load({**LEAST, "allowed_uids": "1000"}).socket_permissions == 0o666
    assert load({**LEAST, "principal": '[{"name": "a", "gid": 5}]'}).socket_permissions == 0o666


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/a/b/", "my.bucket-1", "a/b"),
    ],
)
def test_a_remote_is_a_bucket_and_a_prefix(text: str, bucket: str, prefix: str) -> None:
    settings = load({**LEAST, "remote": text})
    assert (settings.durable.bucket, settings.durable.prefix) == (bucket, prefix)


# --- the documentation ---------------------------------------------------------------------------


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    text = text.partition("## ")[0]
    for name, field in NAMED.items():
        name = name.replace("remote_", "remote.")
        assert field.description
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert field.description in row, f"docs/configuration.md: {name}: {field.description}"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(NAMED)


def test_the_environment_is_clean() -> None:
    assert not [name for name in os.environ if name.startswith("CACHETIER_CACHE")]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_with_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "cachetier.toml"
    file.write_text('token = "a-token-of-sixteen"\n')
    file.chmod(mode)

    with pytest.raises(ConfigError, match="holds `token`, and others can read it") as refused:
        load(LEAST)

    assert "chmod 600 cachetier.toml" in refused.value.hint
    assert "CACHETIER_TOKEN" in refused.value.hint
    assert "sixteen" not in f"{refused.value.message}{refused.value.hint}"
    file.chmod(0o600)
    assert load(LEAST).token is not None


def test_a_file_without_a_secret_may_be_read_by_all(tmp_path: Path) -> None:
    file = tmp_path / "cachetier.toml"
    file.write_text('token = ""\ncapacity = "50%"\n')
    file.chmod(0o644)

    assert load(LEAST).capacity == "50%"


def test_a_token_that_could_be_guessed_is_refused_and_not_shown() -> None:
    assert "16" in failure(token="fifteen-letters").message
    assert "fifteen" not in failure(token="fifteen-letters").message
    assert load({**LEAST, "token": "sixteen-letters!"}).token is not None


@pytest.mark.parametrize(
    "name", ["https://node7", "*.example.org", "node7/x", "node7:port", "a b@c"]
)
def test_a_name_of_the_door_is_a_host_alone(name: str) -> None:
    assert "node7:7070" in failure(hosts=name).message
    assert load({**LEAST, "hosts": "node7, [::1]:1 a.b:80"}).hosts == (
        *("node7", "[::1]:1", "a.b:80"),
    )


@pytest.mark.parametrize("before", sorted(RENAMED))
def test_a_setting_of_before_leads_to_its_successor(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f'{before} = "x"\n')
    (found,) = sourced(LEAST, config=file).problems
    assert RENAMED[before] in found.message
    assert f"`{before}` in {file}, line 1" in found.message
    assert before not in SETTINGS
    if before not in NAMED:  # a key of `remote` keeps its variable
        monkeypatch.setenv(f"CACHETIER_{before.upper()}", "x")
        assert RENAMED[before] in failure().message
