"""The mistakes that people make first, as rows: what was written, and what the answer has to say.

Each row has the exit code, what the error names, and what its next move says. A ``{...}`` stands
for a place that exists only while the test runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mistake:
    """One mistake: the command line, its variables and file, and the answer that is due."""

    words: str
    code: int
    names: str
    next_move: str
    variables: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*variables, self.words, *(self.file or "").splitlines()[:1]])


_LEAST = 'cache_dir = "/c"\nremote = "s3://bucket/p"\n'
_MEND, _UNKNOWN = "Correct the setting", "Correct or remove it"
_TOML = "in quotes"

# --- a line of cachetier.toml ---------------------------------------------------------------------
# The line, what is named, and the next move.
_LINES: tuple[tuple[str, str, str], ...] = (
    ("capacity = 4", "`capacity`|line 3|'4' is 4 B|64 MiB is the least|'4 GB'?", _MEND),
    ('capacity = "80"', "`capacity`|'80 GB'?", _MEND),
    ('capacity = "4 MB"', "`capacity`|64 MiB is the least", _MEND),
    ("capacity = 0.8", "`capacity`|put one in quotes, as '200 GB' or '80%'", _MEND),
    ('capacity = "200 XB"', "`capacity`|'200 XB' is not a size such as", _MEND),
    ('capacity = "120%"', "`capacity`|up to 100%", _MEND),
    ('capacity = "-5 GB"', "`capacity`|'-5 GB' is not a size", _MEND),
    ("capacity = true", "`capacity`|True is no size", _MEND),
    ("capacity = 4 GB", "line 3", _TOML),
    ('capacity "4 GB"', "line 3", _TOML),
    ('capacity = "4 GB"\ncapacity = "5 GB"', "`capacity` is given twice|line 3|line 4", "Keep one"),
    ('[replicas.n]\n[replicas.n]\nurl = "s3://n/p"', "[replicas.n]|line 3|line 4", "Keep one"),
    ('capacty = "5 GB"', "`capacty`|line 3|did you mean capacity?", _UNKNOWN),
    ('bucket = "b"', "`bucket`|did you mean remote?", _UNKNOWN),
    ("port = 7070", "`port`|did you mean http?", _UNKNOWN),
    ('region = "eu-west-1"', "`region`|did you mean remote.region?", _UNKNOWN),
    (
        'endpoint = "http://h:1"',
        "`endpoint`|did you mean remote.endpoint?",
        _UNKNOWN,
    ),
    ("watermarks = [0.8, 90]", "`watermarks`|90 is not above 0 and at most 1", _MEND),
    ("watermarks = [0.95, 0.9]", "`watermarks`|the lower first", _MEND),
    ('http = "7070"', "`http`|'127.0.0.1:7070'", _MEND),
    ("http = 7070", "`http`|put it in quotes", _MEND),
    ("http = 127.0.0.1:7070", "line 3", _TOML),
    ('http = "127.0.0.1:99999"', "`http`|'127.0.0.1:7070'", _MEND),
    ('http = "0.0.0.0:7070"', "0.0.0.0:7070|`tls`|'http://0.0.0.0:7070'", _MEND),
    ("keep_local = 066", "line 3", _TOML),
    (f'socket = "/{"x" * 120}"', "set a shorter `socket`", _MEND),
    ('allowed_uids = "root"', "`allowed_uids`|'root' is not a number", _MEND),
    ("allowed_uids = [-1]", "`allowed_uids`|-1 is not at least 0", _MEND),
    ('max_rate = "fast"', "`max_rate`|'2 GB/s' or '25 Gbit/s'", _MEND),
    ('max_rate = "200"', "`max_rate`|'200' has no unit|'200 MB/s' or '200 Gbit/s'", _MEND),
    ('max_rate = "200 MB/min"', "`max_rate`|'200 MB/min' is not a rate", _MEND),
    ('max_rate = "0"', "`max_rate`|give a window for a pause", _MEND),
    ('max_rate = "8-20 200MB/s"', "`max_rate`|'08:00-20:00 200 MB/s'", _MEND),
    ('max_rate = "25:00-26:00 1MB/s"', "`max_rate`|write 00:00 to 23:59", _MEND),
    ("durable_every = 0", "`durable_every`|0 is not at least 1", _MEND),
    ("keep_local = 1.5", "`keep_local`|1.5 is not a whole number", _MEND),
    ('compression = "gzip"', "`compression`|'zstd:1' to 'zstd:19'", _MEND),
    ('compression = { "a*" = "gzip" }', "`compression`|'a*'|'zstd:1'", _MEND),
    ("drain_workers = 1000", "`drain_workers`|at least 1 and at most 64", _MEND),
    ('drain_cores = "of 0,99999"', "`drain_cores`|there is no CPU 99999", _MEND),
    ('drain_cores = "all"', "`drain_cores`|'2 of 4-7'", _MEND),
    ('grace = "half a minute"', "`grace`|'30min', '12h' or '7d'", _MEND),
    ('notice = "2d"', "`notice`|at most 86400", _MEND),
    ("notice = 240", "`notice`|has no unit|'240s'", _MEND),
    ('exposure_objective = "0s"', "`exposure_objective`|0 is not above 0", _MEND),
    ('log = "verbose"', "`log`|'debug', 'info', 'warning' or 'error'", _MEND),
    ('log = "info:jsn"', "`log`|did you mean json?", _MEND),
    ('when_full = "drop"', "`when_full`|'wait', 'write_through' or 'reject'", _MEND),
    ('remote_endpoint = "http://h:1"', "`remote_endpoint`|`remote.endpoint`", "the new name"),
    ('s3 = "127.0.0.1:7071"', "`s3`|add an [[s3_mount]]", _MEND),
    ('pack = "maybe"', "`pack`|neither 'on' nor 'off'", _MEND),
    ('durable_every = "10, 20"', "`durable_every`|'10, newest'", _MEND),
    ('memory = { size = "64 GiB" }', "`memory`|'64 GiB in /mnt/memory'", _MEND),
    ('peers = { copies = "1, 20%, 3" }', "`peers`|'1, 20%'", _MEND),
    ('[peers]\nroom = "9%"', "`peers`|copies = '1, 20%'", _MEND),
    ('tls = "/x.pem"', "`tls`|the certificate and its key", _MEND),
    ('token = "short"', "`token`|16 are the least: make one by `openssl rand", _MEND),
    ('cluster = "node1"', "`cluster`|'node1' is not a URL", _MEND),
    ('hosts = "http://h"', "`hosts`|'node7' or 'node7:7070'", _MEND),
    ('[[principal]]\nrole = "write"', "`principal`|`name` is not set", _MEND),
    ('[[principal]]\nname = "Team"', "`principal`|line 4|a lower-case letter first", _MEND),
    ('[[principal]]\nname = "a"\nrole = "root"', "line 5|'root' is not 'scrape', 'read'", _MEND),
    ('[principal]\nname = "a"', "`principal`|[[principal]] for each", _MEND),
    ('[replicas.n]\nendpoint = "http://h"', "`replicas`|`url` is not set", _MEND),
    ('[replicas.n]\nurl = "s3://bucket/p"', "same place as `remote`", _MEND),
    ('[[s3_mount]]\nname = "a"', "`s3_mount`|give each mount both", _MEND),
)

# --- a remote -------------------------------------------------------------------------------------
_REMOTES: tuple[tuple[str, str], ...] = (
    ("bucket/p", "did you mean 's3://bucket/p'?"),
    ("s3:/bucket/p", "did you mean 's3://bucket/p'?"),
    ("S3://bucket/p", "did you mean 's3://bucket/p'?"),
    ("s3://", "names no bucket|'s3://bucket/prefix'"),
    ("s3://ab/p", "3 to 63 characters"),
    ("s3://my bucket/p", "has ' ' in its bucket|'s3://my-bucket/p'?"),
    ("s3://bucket/a b", "has ' ' in its prefix|'s3://bucket/a-b'?"),
    ("s3://bucket/../x", "has a segment '..'|'s3://bucket/x'?"),
    ("/data/checkpoints", "does not begin with s3://"),
    ("file:///data", "does not begin with s3://"),
    ("gs://bucket/p", "s3://bucket/prefix|https://storage.googleapis.com|HMAC key"),
    ("az://box/p", "Azure has no S3 API|gateway"),
    ("abfs://box@account/p", "Azure has no S3 API|gateway"),
    ("http://minio:9000/bucket/p", "`remote.endpoint`|'s3://bucket/p'?"),
    ("s3://minio:9000/bucket/p", "`remote.endpoint`|'s3://bucket/p'?"),
    ("https://bucket.s3.eu-west-1.amazonaws.com/p", "'s3://bucket/p'?"),
    ("arn:aws:s3:::bucket/p", "is an ARN|'s3://bucket/p'?"),
    ("s3://key:secret@bucket/p", "***@bucket|the AWS chain alone"),
)

# --- a variable -----------------------------------------------------------------------------------
_VARIABLES: tuple[tuple[str, str, str, str], ...] = (
    ("CACHETIER_CAPACITY", "4", "`capacity` from CACHETIER_CAPACITY|'4 GB'?", _MEND),
    ("CACHETIER_CAPCITY", "4 GB", "CACHETIER_CAPCITY|did you mean CACHETIER_CAPACITY?", _UNKNOWN),
    ("CACHETIER_REMOTE_ASSUME", "crc", "CACHETIER_REMOTE_ASSUME|'readback', ", _MEND),
    ("CACHETIER_REMOTE_ENCRYPTION", "sse", "CACHETIER_REMOTE_ENCRYPTION|'aws:kms'", _MEND),
    ("CACHETIER_REMOTE_ENDPOINT", "minio:9000", "`remote_endpoint`|is not a URL such as", _MEND),
    ("CACHETIER_REMOTE_ENDPOINT", "http://a:b@h", "***@h|the AWS chain alone", _MEND),
    ("CACHETIER_HTTP", "7070", "`http` from CACHETIER_HTTP", _MEND),
    ("CACHETIER_ALLOWED_UIDS", "me", "CACHETIER_ALLOWED_UIDS|'me' is not a number", _MEND),
    ("CACHETIER_RUN_WEIGHTS", "a=1", "CACHETIER_RUN_WEIGHTS|is not JSON such as", _MEND),
    ("CACHETIER_REPLICAS", "{near", "CACHETIER_REPLICAS|is not JSON such as", _MEND),
    ("CACHETIER_TOKEN", "abc", "CACHETIER_TOKEN|16 are the least", _MEND),
    ("CACHETIER_PACK", "2", "CACHETIER_PACK|neither 'on' nor 'off'", _MEND),
    ("CACHETIER_CONFIG", "/nowhere.toml", "/nowhere.toml: No such file", "--config"),
    ("CACHETIER_CONFIG", "/", "/: Is a directory", "--config"),
)

# --- the command line itself ----------------------------------------------------------------------
_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("statsu", "no verb `cachetier statsu`", "`cachetier status`?"),
    ("list", "no verb `cachetier list`", "`cachetier ls`?"),
    ("token lst", "no verb `cachetier token lst`", "`cachetier token list`?"),
    ("status --jsno", "no option --jsno", "--json?"),
    ("--url unix:///s status", "no option --url", "come after it: cachetier VERB --url"),
    ("serve --capcity 4GB", "no option --capcity", "--capacity?"),
    ("whoami --json on", "--json takes no value", "Give --json alone"),
    ("serve --set pack", "--set: 'pack' has no value", "KEY=VALUE"),
    ("serve --set pakc=on", "--set: unknown setting `pakc`: did you mean pack?", _UNKNOWN),
    ("serve --set supersede=on", "--set|`supersede` is no longer a setting", "the new name"),
    ("flush --deadline 4s", "no option --deadline", "--timeout?"),
    ("put x --run r --step 1", "no option --run", "cachetier put SOURCE RUN [STEP]"),
    ("serve --pack", "no option --pack", "--set pack=VALUE"),
    ("serve now", "does not take 'now'", "cachetier serve [OPTIONS]"),
    ("serve", "`cache_dir` is not set", "--cache-dir|CACHETIER_CACHE_DIR|cachetier.toml"),
    ("serve --cache-dir /c", "`remote` is not set", "--remote|CACHETIER_REMOTE"),
    ("serve --cache-dir", "--cache-dir needs a value", "--cache-dir VALUE"),
    ("dev --s3-dor h:1", "no option --s3-dor", "--s3"),
    ("dev --capacity 4", "`capacity` from --capacity|'4 GB'?", _MEND),
    ("dev --log inof", "`log`|did you mean info?", _MEND),
    ("dev --s3-port 99999", "--s3-port: '99999' is more than 65535", "--help"),
    ("get train", "needs STEP", "cachetier get RUN STEP"),
    ("put - train 9", "needs --name", "--name NAME"),
    ("put - train 9e3 --name w", "STEP: '9e3' is not a whole number", "--help"),
    ("put - r 1 --name w --level fsync", "--level 'fsync'|replicated", "Choose one"),
    ("get r 1 --name w --json", "cannot share standard output", "Name a file"),
    ("get r 1 --name w /", "/ is a directory", "Name the file"),
    ("get r 1 --name w /nowhere/x", "no directory /nowhere", "Create that directory first"),
    ("get r 1 --name w --range all out", "--range 'all'", "FIRST-LAST"),
    ("ls train seven", "STEP: 'seven' is not a whole number", "--help"),
    ("ls --level durabel", "--level 'durabel'", "durable?"),
    ("status train", "needs STEP", "cachetier status RUN STEP"),
    ("status train -7", "STEP: -7 is negative", "cachetier status"),
    ("wait train -1", "STEP: -1 is negative", "cachetier wait RUN STEP"),
    ("wait train 7 --level best", "--level 'best' is not one of memory, local", "Choose one"),
    ("wait train 7 --timeout soon", "--timeout: 'soon'|30min", "30s"),
    ("wait train 7 --timeout -3", "--timeout: '-3' is not a span", "30s"),
    ("flush --timeout 4x", "--timeout: '4x'|30min", "30s"),
    ("flush --timeout 4", "--timeout: '4' has no unit", "4s"),
    ("flush train 7 8", "does not take '8'", "cachetier flush [RUN] [STEP]"),
    ("delete train 7", "must be confirmed", "--yes"),
    ("get train 7", "no shard and no destination", "--name NAME"),
    ("get train 7 /x --format zip", "--format 'zip'|safetensors", "Choose one"),
    ("put /nowhere train", "the name /nowhere has no step", "RUN STEP"),
    ("prune --older-than soon", "--older-than: 'soon'|'30min', '12h' or '7d'", "12h"),
    ("adopt /nowhere train", "no folder /nowhere", "make it"),
    ("adopt / train", "the number of watchers", "--rank 0 --world-size 1"),
    ("plan costs", "Nothing says what a checkpoint holds", "--params 13B or --size 2TB|--from-run"),
    ("plan costs --params lots", "--params: 'lots'|'6.7B'", "6.7B"),
    ("plan costs --size 1TB --gpus 0", "--gpus: 0 is impossible", "at least 1"),
    ("plan costs --size 1TB --link 25", "--link: '25' has no unit|'25 Gbit/s'", "25Gbit/s"),
    ("plan costs --size 1TB --interval 0s", "--interval: '0s' is less than 1", "10min"),
    ("plan simulate", "needs SCENARIO", "cachetier plan simulate SCENARIO"),
    ("plan simulate /nowhere.toml", "Cannot read /nowhere.toml: No such file", "docs/planning.md"),
    ("fsck --cache-dir /nowhere --remote s3://bucket", "no cache in /nowhere", "--cache-dir"),
    ("bench --size huge", "--size: 'huge' is not a size", "256 MiB"),
    ("bench --remote s3://bucket/p --size tiny", "--size: 'tiny'", "256 MiB"),
    ("doctor --only nothing", "no check 'nothing'", "memory, cpu"),
    ("token create", "needs PRINCIPAL", "cachetier token create PRINCIPAL"),
)

# --- an address of the service --------------------------------------------------------------------
_URLS: tuple[tuple[str, int, str, str], ...] = (
    ("unix:///nobody", 4, "unix:///nobody: no such socket", "`cachetier serve` runs|CACHETIER_URL"),
    ("unix://s", 2, "needs an absolute path", "Correct the option or the variable"),
    ("/run/s", 2, "'unix:///run/s'?", "Correct the option or the variable"),
    ("localhost:7070", 2, "'http://localhost:7070'?", "Correct the option or the variable"),
    ("http://localhost:99999", 2, "a port from 1 to 65535", "Correct the option or the variable"),
    ("ftp://h", 2, "unix:///path/to/cachetier.sock", "Correct the option or the variable"),
    ("http://127.0.0.1:1", 4, "nobody listens there", "CACHETIER_URL"),
    ("{s3}", 2, "an S3 server answers there", "unix:///path/to/cachetier.sock|http://host:7070"),
    ("{silent_file}", 4, "nobody listens there", "`cachetier serve` runs"),
)

# --- runs, steps and names of a node that is up ---------------------------------------------------
_STEP7 = "train 7"
_SERVED: tuple[tuple[str, int, str, str], ...] = (
    (f"get {_STEP7} --name weight {{out}}", 1, "no shard weight in step 7", "cachetier ls"),
    ("get train 9 --name w {out}", 1, "train has no step 9", "cachetier ls"),
    (f"get {_STEP7} --name weights --range 5000- {{out}}", 2, "--range 5000-|2000 bytes", "FIRST-"),
    (f"put - {_STEP7} --name weights", 1, "has sealed step 7", "--overwrite"),
    ("put /nowhere train 9 --name w", 2, "/nowhere: No such file", "Name a file"),
    ("put / train 9 --name w", 2, "--name is about one file", "name the file"),
    ("put - train 9 --name ../w", 2, "Shard name '../w'", "Call it w"),
    ("put - 'tr ain' 9 --name w", 2, "Run 'tr ain'", "Call it tr-ain"),
    ("put - '' 9 --name w", 2, "No run was named", "CACHETIER_RUN"),
    ("put - train -1 --name w", 2, "STEP: -1 is negative", "cachetier put SOURCE RUN"),
    ("put - train 9 --name w --rank 3", 2, "Rank 3 of world_size 1", "--world-size"),
    ("put - train 9 --name w --element-size 3", 2, "element_size 3", "2 for bf16"),
    ("wait train 7 --timeout 0.05s", 3, "not durable after 0.05 s", "safe on this node"),
    ("wait train 7 --name nope --timeout 1s", 1, "no shard nope", "cachetier ls"),
    ("flush train 999 --timeout 1s", 1, "knows step 999 of run train", "cachetier ls"),
    ("flush trian --timeout 1s", 1, "knows run trian: did you mean train?", "cachetier ls"),
    ("ls s3:nope", 1, "no mount is called 'nope'", "`cachetier ls` names"),
    ("pin train 99", 1, "99", "restore"),
    ("delete train 99 --yes", 1, "train has no step 99", "cachetier ls"),
    ("get train 7 / --format files", 2, "/ exists already", "Name another"),
    ("get train 99 {out}", 1, "train has no step 99", "cachetier ls"),
    ("put /nowhere train 3", 2, "/nowhere: No such file", "Name a file"),
    ("put gs://b/x train 3", 2, "gs://b/x|Google's buckets", "Correct the option"),
    ("put s3:/b/x train 3", 2, "does not begin with s3://", "Correct the option"),
    (
        "put s3://nowhere/x train 3 --remote-endpoint {s3}",
        *(1, "read s3://nowhere/x: there is no bucket nowhere", "address of the source"),
    ),
    (
        "put s3://nowhere/x train 3 --remote-endpoint http://127.0.0.1:1",
        *(
            1,
            "read s3://nowhere/x: the store cannot be reached at http://127.0.0.1:1",
            "--remote-e",
        ),
    ),
    ("plan interval nope", 1, "this node knows no run nope", "`cachetier ls`|--durable"),
    ("plan interval trian", 1, "knows no run trian: did you mean train?", "`cachetier ls`"),
    ("plan interval train", 2, "how long a step takes to become durable", "--durable"),
    ("plan costs --from-run trian", 1, "no run trian: did you mean train?", "`cachetier ls`"),
    ("forget nope", 1, "no other node nope", "cachetier ls RUN --latest"),
    ("token revoke nope", 2, "no token 'nope'", "cachetier token list"),
    ("s3 env", 2, "has no S3 door", "Set `s3`"),
)


# --- a start ------------------------------------------------------------------------------------
# Flags of `serve`; all but the last one ends before the bucket is asked.
_STARTS: tuple[tuple[str, str, str], ...] = (
    ("--http 127.0.0.1:{port}", "cannot listen on http 127.0.0.1:{port}: Address al", "port 0"),
    ("--set health=127.0.0.1:{port}", "cannot listen on health 127.0.0.1:{port}", "`health`"),
    ("--s3 127.0.0.1:{port} --set 's3_mount={mount}'", "listen on s3 127.0.0.1:{port}", "`s3`"),
    (
        "--http http://203.0.113.1:7070",
        "listen on http 203.0.113.1:7070",
        "`http`",
    ),
    ("--cache-dir {busy}", "another cachetier serves {busy}", "Stop that one|cache_dir"),
    ("", "there is no bucket bucket (NoSuchBucket)", "Create it, or correct `remote`"),
)
# Those that are found out only by trying, with a bucket that is away.
_TRIED: tuple[tuple[str, str, str], ...] = (
    ("--cache-dir {file}", "cannot use cache_dir {file}: File exists", "may create and write"),
    ("--cache-dir {open}", "others may write to cache_dir {open}", "chmod go-w {open}"),
    (
        "--cache-dir /dev/shm/{name}",
        "tmpfs, which is in memory",
        "ext4 or XFS|--set allow_volatile=on",
    ),
    ("--socket {open}", "cannot listen on {open}: Is a directory", "`socket`"),
    ("--socket {open}/none/s", "cannot listen on {open}/none/s: No such file", "`socket`"),
    ("--set audit=/nowhere/a", "cannot write the audit log /nowhere/a: No such file", "`audit`"),
    (
        "--set tls=/x,/y",
        "TLS cannot use /y: No such file",
        "PEM|--only tls",
    ),
)


def of_settings() -> Iterator[Mistake]:
    """Yield those that `config --check` answers: of the file, of a remote, and of variables."""
    for line, names, move in _LINES:
        yield Mistake("config --check --config {file}", 2, names, move, file=f"{_LEAST}{line}\n")
    for remote, names in _REMOTES:
        names = f"`remote` from --remote|{names}"
        yield Mistake(f"config --check --cache-dir /c --remote '{remote}'", 2, names, _MEND)
    for name, value, names, move in _VARIABLES:
        words = "config --check --cache-dir /c --remote s3://bucket/p"
        yield Mistake(words, 2, names, move, variables={name: value})


def of_commands() -> Iterator[Mistake]:
    """Yield those of the command line, which need nobody."""
    for words, names, move in _COMMANDS:
        yield Mistake(words, 2, names, move)


def of_a_node() -> Iterator[Mistake]:
    """Yield those that a running node is asked about, or that miss it."""
    for url, code, names, move in _URLS:
        yield Mistake("status", code, names, move, variables={"CACHETIER_URL": url})
    for token, names in (("", "requires a token"), ("x" * 32, "is not valid")):
        variables = {"CACHETIER_URL": "{http}", "CACHETIER_TOKEN": token}
        yield Mistake("status", 1, names, "CACHETIER_TOKEN|<cache_dir>/token", variables=variables)
    for words, code, names, move in _SERVED:
        yield Mistake(words, code, names, move)


def of_starts(*, away: bool) -> Iterator[Mistake]:
    """Yield those of a start; ``away``: the bucket is, and the start gets further."""
    for flags, names, move in _TRIED if away else _STARTS:
        yield Mistake(f"serve {flags}", 2, names, move)
