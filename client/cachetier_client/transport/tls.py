"""HTTPS on the client's side: whom it trusts, what it shows of itself, and why that failed."""

from __future__ import annotations

import os
import ssl

from cachetier_client.errors import CachetierClientError, ForbiddenError, InvalidRequestError

CA_VARIABLE = "CACHETIER_CA"
CERTIFICATE_VARIABLE = "CACHETIER_CLIENT_CERT"
KEY_VARIABLE = "CACHETIER_CLIENT_KEY"


def context_of_environment() -> ssl.SSLContext:
    """Return a context that trusts ``CACHETIER_CA``, by default the system's authorities.

    With ``CACHETIER_CLIENT_CERT`` it shows that certificate; ``CACHETIER_CLIENT_KEY`` may be in the
    same file.

    Raises:
        ValueError: A file cannot be used; names its variable.
    """
    authorities, certificate = os.environ.get(CA_VARIABLE), os.environ.get(CERTIFICATE_VARIABLE)
    at = CA_VARIABLE
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate:
            at = CERTIFICATE_VARIABLE
            key = os.environ.get(KEY_VARIABLE) or None
            context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ValueError(f"{at}={os.environ.get(at)!r} cannot be used: {why}") from None
    return context


def refusal_of(error: ssl.SSLError, peer: str) -> CachetierClientError | None:
    """Return what repeating does not mend about a failure of TLS; None for a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ForbiddenError(
            f"{peer} shows a certificate that is not trusted: {error.verify_message}",
            hint=(
                f"Set {CA_VARIABLE} to the CA file of its issuer, and use the name in the "
                "certificate."
            ),
        )
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return InvalidRequestError(
            f"{peer} speaks no TLS",
            hint="Write http:// in CACHETIER_URL, or give it a certificate.",
        )
    if "ALERT" in reason:
        return ForbiddenError(
            f"{peer} refuses this client's certificate, or wants one: {reason}",
            hint=f"Set {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} to what its authority issued.",
        )
    return None
