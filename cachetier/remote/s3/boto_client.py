"""Make a client of botocore: connections, timeouts, credentials, no retries of its own.

botocore is the part of boto3 that makes requests. The rest, which nothing here uses, would cost
each process 0.15 s at its start. What the client is made to do, and why:

- **No retries**: ``remote.call_policy`` is the one place that retries.
- **No payload signing**: it hashes every byte twice as slowly as the wire takes them; the
  CRC-64/NVME in a signed header protects them instead.
- **No** ``Expect: 100-continue``: it costs every put a round trip, and a second where a server
  does not know it.
- **Connections that can be cut**: each tells the stall guard which call it serves.
- **Bodies as they are**: urllib3 would cut them into 16 KiB, and the processor would be the limit.
- **Memory that is used again**: to receive into new memory costs as much as the bytes.
- **Packets together**, and records: the kernel wakes for each, and TLS gives 16 KiB at a time,
  which would all come through every layer.
- **Programs that give credentials are ended** when they hang: all else that is asked for them has
  a timeout of its own.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPResponse
from io import DEFAULT_BUFFER_SIZE, BufferedReader
from typing import TYPE_CHECKING, Any, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.credentials import ProcessProvider, RefreshableCredentials
from botocore.exceptions import BotoCoreError, CredentialRetrievalError
from botocore.handlers import add_expect_header
from botocore.loaders import Loader, create_loader
from botocore.session import Session
from cachetier_client.identity.remote_url import DEFAULT_REGION

from cachetier.errors import ConfigError
from cachetier.remote import stall_guard
from cachetier.remote.s3.boto_errors import in_a_line
from cachetier.remote.settings import AddressingStyle, RemoteSettings
from cachetier.remote.stall_guard import Timeouts
from cachetier.remote.store_clock import StoreClock

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

SEND_BYTES = 1 << 20  # with small ones the processor is the limit
ENCRYPTED_BYTES = 64 << 10  # takes a second even where a connection gets next to nothing
RECORD_BYTES = 16 << 10  # TLS has no larger ones
GATHER_SECONDS = 0.1  # whoever waits longer is woken for less the next time
WINDOW_BYTES = 1 << 20  # of a connection that brings a body: twice what we are woken for
PROGRAM_SECONDS = 60.0  # one may ask somebody else; calls that need its answer wait as long

# A parameter of calls beside botocore's: content headers, sent as they are. botocore would
# take an ``Expires`` apart, and refuse what is no date, though S3 keeps it.
HEADERS = "CachetierHeaders"
ASKED = "CachetierAsked"  # when, by the store clock's own

_SOURCE = "Mend the program, profile or agent that the AWS configuration takes credentials from."
_SETTINGS = "Correct the remote's settings, or the AWS profile and files that they lead to."


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key of its own; without one the usual AWS chain decides."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def connect(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Credentials | str | None = None,
    max_connections: int = 32,
    timeouts: Timeouts | None = None,
    store_clock: StoreClock | None = None,
    addressing_style: AddressingStyle = "auto",
) -> S3Client:
    """Return a client set up as this module needs it. It opens no connection to the store.

    ``store_clock`` hears the date of every answer. The AWS configuration may say the addressing
    style that is ``auto`` here; else it is ``path`` with an endpoint.

    It looks for credentials: files are read, a program may be run, a metadata service asked.
    ``credentials`` may name a profile of the AWS configuration, which goes before the environment's
    keys.

    Raises:
        ConfigError: The endpoint is no URL, the AWS profile does not exist, whoever is to give
            credentials fails, or the certificates to trust cannot be read.
    """
    timeouts = timeouts or Timeouts()
    try:
        config = _config(addressing_style, max_connections, timeouts)
        session = _session(credentials)
        loader = _loader(session.get_config_variable("data_path"))
        session.register_component("data_loader", loader)
        client = session.create_client(
            "s3",
            endpoint_url=endpoint,
            region_name=region or session.get_config_variable("region") or DEFAULT_REGION,
            config=config,
        )
    except CredentialRetrievalError as error:
        raise ConfigError(f"cannot set up the remote: {in_a_line(error)}", hint=_SOURCE) from error
    except OSError as error:  # of a program: botocore lets it through
        raise ConfigError(f"cannot get credentials: {error}", hint=_SOURCE) from error
    except (BotoCoreError, ValueError) as error:
        cause = in_a_line(error)
        raise ConfigError(f"cannot set up the remote: {cause}", hint=_SETTINGS) from error
    if client.meta.endpoint_url.startswith("https:"):
        _check_authorities(session)
    _report_connections(client)
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-parameter-build.s3", _take_headers)
    client.meta.events.register("before-call.s3", _send_headers)
    if store_clock is not None:
        _hear_dates(client, store_clock)
    if endpoint:
        client.meta.events.register("before-call.s3", _follow_no_redirect)
    return cast("S3Client", client)


@cache
def _loader(data_path: str | None) -> Loader:
    """Return what reads botocore's models; with one for all a client takes a tenth of the time."""
    return create_loader(data_path)


def load_models() -> None:
    """Read what the first client would."""
    loader = _loader(None)
    for model in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", model)
    loader.load_data("endpoints")


def connect_to(
    remote: RemoteSettings,
    style: AddressingStyle,
    *,
    max_connections: int,
    timeouts: Timeouts | None = None,
    store_clock: StoreClock | None = None,
) -> S3Client:
    """Return a client of the server of ``remote``, with its credentials, as ``connect`` does."""
    return connect(
        endpoint=remote.endpoint,
        region=remote.region,
        credentials=remote.profile,
        max_connections=max_connections,
        timeouts=timeouts,
        store_clock=store_clock,
        addressing_style=style,
    )


def endpoint_of_profile(name: str | None) -> str | None:
    """Return the endpoint of S3 that the AWS configuration names for a profile, or the usual one.

    None for none: also where the profile does not exist, which ``connect`` says.
    """
    session = Session(profile=name)
    try:
        profile = session.get_scoped_config()
    except BotoCoreError:
        return None
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    services = session.full_config.get("services", {}).get(profile.get("services"), {})
    named: str | None = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    return named


def configured_style(name: str | None) -> AddressingStyle:
    """Return the addressing style that the AWS configuration has for a profile, or the usual one.

    ``auto`` for none: also where the profile does not exist, which ``connect`` says.
    """
    try:
        found = Session(profile=name).get_config_variable("s3") or {}
    except BotoCoreError:
        return "auto"
    return cast("AddressingStyle", found.get("addressing_style") or "auto")


def _config(style: AddressingStyle, max_connections: int, timeouts: Timeouts) -> Config:
    s3: Any = {"payload_signing_enabled": False}
    s3 |= {} if style == "auto" else {"addressing_style": style}
    return Config(
        connect_timeout=timeouts.connect_seconds,
        read_timeout=timeouts.read_seconds,
        max_pool_connections=max_connections,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": 1},
        s3=s3,
        tcp_keepalive=True,
    )


def _check_authorities(session: Session) -> None:
    """Read the certificates that botocore will trust; it would do so at the first call only.

    Raises:
        ConfigError: They cannot be read, or are none.
    """
    path = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    if not path:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"cannot read certificates from {path}: {error.strerror or error}",
            hint="Correct AWS_CA_BUNDLE (or `ca_bundle` of the AWS profile): a readable PEM file.",
        ) from error


def _session(credentials: Credentials | str | None) -> Session:
    session = Session(profile=credentials if isinstance(credentials, str) else None)
    if isinstance(credentials, Credentials):
        session.set_credentials(
            credentials.access_key, credentials.secret_key, credentials.session_token
        )
    # Both are private to botocore; tests/integration/test_credentials.py notices if they go.
    for provider in session.get_component("credential_provider").providers:
        if isinstance(provider, ProcessProvider):
            provider._popen = _Program  # type: ignore[attr-defined]
        builder = getattr(provider, "_profile_provider_builder", None)  # of a role's own source
        if builder is not None:
            builder._create_process_provider = lambda profile: ProcessProvider(
                profile, lambda: session.full_config, _Program
            )
    return session


class _Program(subprocess.Popen[bytes]):
    """A program that gives credentials, for ``PROGRAM_SECONDS`` at most."""

    def communicate(
        self,
        input: bytes | None = None,  # noqa: A002  its name in subprocess
        timeout: float | None = None,
    ) -> tuple[bytes, bytes]:
        try:
            return super().communicate(input, timeout or PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            raise CredentialRetrievalError(
                provider=ProcessProvider.METHOD,
                error_msg=f"no answer in {PROGRAM_SECONDS:g} s, it was ended",
            ) from None
        finally:
            if self.poll() is None:
                self.kill()
                self.wait()
            for pipe in (self.stdout, self.stderr):
                if pipe is not None:
                    pipe.close()


@dataclass(frozen=True, slots=True)
class FoundCredentials:
    """Which credentials the AWS chain found; never the secret.

    Args:
        source: botocore's name of where they are from: ``env``, ``iam-role``, ``assume-role``...
        access_key: The id of the key.
        temporary: Whether they end.
        renewed: Whether botocore fetches new ones by itself.
        expires_at: When the present ones end, UTC seconds; None where they do not say.
    """

    source: str
    access_key: str
    temporary: bool
    renewed: bool
    expires_at: float | None


def find_credentials(credentials: Credentials | str | None) -> FoundCredentials | None:
    """Return what a client would sign with; may ask a metadata service. None if there is nothing.

    Raises:
        BotoCoreError: A source is there and cannot be used.
    """
    found = _session(credentials).get_credentials()
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    renewed = isinstance(found, RefreshableCredentials)
    expiry: Any = getattr(found, "_expiry_time", None)  # botocore does not tell otherwise
    return FoundCredentials(
        source=str(found.method or "unknown"),
        access_key=str(frozen.access_key),
        temporary=bool(frozen.token),
        renewed=renewed,
        expires_at=expiry.timestamp() if expiry is not None else None,
    )


def _report_connections(client: Any) -> None:
    """Let the stall guard know on which connection each call goes, and how far its body is."""

    def pool(base: Any, connection: Any) -> Any:
        return type(base.__name__, (base,), {"ConnectionCls": _watched(connection)})

    # botocore has no public way to name the connection's class; tests/conformance notice if this
    # one goes.
    session = client._endpoint.http_session
    session._pool_classes_by_scheme.update(
        http=pool(AWSHTTPConnectionPool, AWSHTTPConnection),
        https=pool(AWSHTTPSConnectionPool, AWSHTTPSConnection),
    )


def _watched(connection: Any) -> Any:
    """Return the class ``connection``, such that the stall guard hears of each request on it."""

    class Watched(connection):  # type: ignore[misc]  # each of botocore's two
        response_class = staticmethod(_answer)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "blocksize": SEND_BYTES})
            if "ssl_context" in options:
                self.ssl_context.sslsocket_class = _GatheringSocket

        def request(self, *arguments: Any, **options: Any) -> Any:
            stall_guard.connected(self)
            return super().request(*arguments, **options)

        def send(self, data: Any) -> None:
            """Send; of a body as much at once as the system takes, without a copy."""
            if not isinstance(data, memoryview) or self._response_received:
                super().send(data)
                return
            # Of what is encrypted nobody hears before all of it is through, in one time-out.
            at_once = ENCRYPTED_BYTES if isinstance(self.sock, ssl.SSLSocket) else len(data)
            while data:
                count = self.sock.send(data[:at_once])
                stall_guard.sent(count)
                data = data[count:]

    return Watched


def _answer(sock: socket.socket, *arguments: Any, **options: Any) -> HTTPResponse:
    """Return an answer that is read by a ``_ReusingReader``."""
    answer = HTTPResponse(sock, *arguments, **options)
    answer.fp = _ReusingReader(answer.fp.detach())
    answer.fp.sock = sock
    return answer


class _ReusingReader(BufferedReader):
    """Receives each piece of a body in the same memory: a piece lasts until the next one.

    The kernel would wake us for every packet. Here it does once there is as much as comes in some
    hundredths of a second, up to half a MiB, which the slowest body brings in half of its time.
    """

    memory = memoryview(b"")
    sock: Any = None  # TLS inside of TLS, to a proxy, has none that the kernel knows
    least = 0  # bytes to be woken for

    def read1(self, size: int = DEFAULT_BUFFER_SIZE, /) -> memoryview:  # type: ignore[override]
        if len(self.memory) < size:
            self.memory = memoryview(bytearray(size))
        into = self.memory[:size]
        # More might never come: some is in our buffer, or in a record of TLS that has begun, and
        # TLS waits for as much again after what it has given first.
        most = (size - DEFAULT_BUFFER_SIZE - 2 * RECORD_BYTES) // 2
        if most < RECORD_BYTES or not isinstance(self.sock, socket.socket):
            return into[: self.readinto1(into)]
        if not self.least:
            self._wake_at(WINDOW_BYTES)  # room for them: by itself it grows too late
            self.least = RECORD_BYTES
        least, began = min(self.least, most), time.monotonic()
        self._wake_at(least)
        count = self.readinto1(into)
        self._wake_at(1)  # what comes next may be less, and the last
        is_quick = count >= 2 * least or time.monotonic() < began + GATHER_SECONDS
        least = 2 * least if is_quick else least // 2
        self.least = max(RECORD_BYTES, min(least, WINDOW_BYTES // 2))
        return into[:count]

    def _wake_at(self, size: int) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


class _GatheringSocket(ssl.SSLSocket):
    """Gives as much at once as ``_ReusingReader`` is woken for; by itself it gives one record."""

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        count = super().recv_into(buffer, nbytes, flags)
        room = nbytes or len(buffer)
        least = self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) - 2 * RECORD_BYTES
        with memoryview(buffer) as view:
            while 0 < count < min(least, room):
                more = cast("int", self.read(room - count, view[count:room]))
                if not more:  # whoever reads on hears of the end
                    break
                count += more
        return count


def _take_headers(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    """Take ``HEADERS`` out of the parameters of a call, before botocore judges them."""
    context[HEADERS] = params.pop(HEADERS, {})


def _send_headers(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    params["headers"].update(context.get(HEADERS, {}))


def _hear_dates(client: Any, store_clock: StoreClock) -> None:
    """Let ``store_clock`` hear the date of every answer; one that a cache kept tells nothing."""

    def ask(context: dict[str, Any], **_: object) -> None:
        context[ASKED] = store_clock.own()

    def hear(response_dict: dict[str, Any] | None, context: dict[str, Any], **_: object) -> None:
        headers = response_dict["headers"] if response_dict else {}
        if ASKED in context and "age" not in headers:
            store_clock.heard(headers.get("date"), context[ASKED])

    client.meta.events.register("before-call.s3", ask)
    client.meta.events.register("response-received.s3", hear)


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Tell botocore that it has followed a redirect already.

    Redirects lead to another region of AWS. A store that answers everything with one, as a gateway
    to https does, would send botocore round in circles.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True
