"""Which options a store takes, and which are refused: names and values as obstore and fsspec have them.

No secret is an option. A command line is seen by everybody on the machine and kept by shells, and a ckpt.toml
is copied and committed; each library has its own variables, profiles and files for secrets. Nothing here
keeps, prints or passes on a secret, except to the client that signs with it.

obstore itself reads the environment, credentials of containers, and every source of Google's and Azure's.
Profiles of AWS (``~/.aws``, SSO, assumed roles, programs), web identities and roles of machines are asked of
botocore, as every AWS tool does; without botocore, obstore tries the latter two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores.store import OBJECT_STORES

Provider = Callable[[], Any]
"""The function that obstore calls for credentials, and again when they have expired."""


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLIENT = _split(
    "allow_http allow_invalid_certificates connect_timeout http1_only http2_keep_alive_interval"
    " http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size http2_only pool_idle_timeout"
    " pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url randomize_addresses read_timeout"
    " root_certificate timeout user_agent"
)
"""Options of the HTTP client under every store (obstore's ClientConfig)."""
RETRY = frozenset({"max_retries", "retry_timeout", "init_backoff", "max_backoff", "backoff_base"})
"""Options of how requests are repeated (RetryConfig and BackoffConfig)."""
_AZ = ("az", "adl", "azure", "abfs", "abfss")
VARIABLES = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", **dict.fromkeys(_AZ, "AZURE_")}
"""The prefix of a scheme's environment variables."""
_ENDPOINTS = {
    "AWS_": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "GOOGLE_": ("GOOGLE_BASE_URL",),
    "AZURE_": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables of the address that requests go to, in obstore's order."""
_PREFIX = re.compile(r"^(?:aws|google|azure_storage|azure)_")
_SECRET = re.compile(
    r"secret|token|passw|passphrase|pwd|key|signature|credential|auth(?!ority)|bearer|cookie|header"
    r"|connection_string|(?:^|[._])(?:pass|sas)(?:$|[._])"
)
_NO_SECRET = _split(
    "application_credentials container_credentials_full_uri container_credentials_relative_uri"
    " fabric_token_service_url skip_signature sse_bucket_key_enabled sse_kms_key_id"
)
_HINTS = {
    "s3": "AWS_PROFILE and ~/.aws, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or 'gcloud auth application-default login'",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN in the environment, or 'az login' and"
    " use_azure_cli=true",
}
"""How to give the libraries credentials."""


def check_option(key: str, value: str) -> tuple[str, str]:
    """Return an option under its library's name. Raise ValueError, which quotes no value, for a secret."""
    name = _PREFIX.sub("", key.strip().lower().replace("-", "_"))
    name = "endpoint" if name == "endpoint_url" else name
    if not re.fullmatch(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*", name):
        raise ValueError("an option is KEY=VALUE, such as region=eu-west-1")
    if is_secret(name):
        hints = "; ".join(_HINTS.values())
        raise ValueError(f"{name} is a credential, which others can see here: use {hints}")
    signature = re.search(r"[?&][^=&]*(?:sig|signature|token)=", value, re.IGNORECASE)
    if signature or re.search(r"://[^/?#]*@", value):
        text = f"others can see the password or signature in {name}"
        raise ValueError(f"{text}: use the library's variables (HTTPS_PROXY)")
    return name, value.strip()


def is_secret(name: str) -> bool:
    """Return True if an option holds a secret, or a value that belongs to one. A file or the id of a key may
    be named; an access key's id is no secret, but would be paired with a secret key of another source.
    """
    if name in _NO_SECRET or re.search(r"(?:file|filename|path)$", name):
        return False
    return _SECRET.search(name) is not None


def open_options(url: str, options: StoreOptions, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments that open a store: of ``obstore.store.from_url`` for its schemes, else of
    the fsspec file system. ``env`` is the environment that the library sees. Raise UsageError for options
    that the store does not have, and CannotLook if its credentials are missing or expired.
    """
    scheme, given = url.partition("://")[0], options.of(url)
    if scheme not in OBJECT_STORES:
        return _nest_options(given)
    if known := next(filter(is_secret, given), None):
        text = f"the option {known} is a credential, which no option may be"
        raise UsageError(text, "; ".join(_HINTS.values()))
    own, made = {key: value for key, value in given.items() if key not in CLIENT | RETRY}, dict[str, Any]()
    if scheme in ("s3", "s3a"):
        own, made["credential_provider"] = find_aws_login(own, env)
    client, prefix = _read_client_options(given), VARIABLES.get(scheme, "")
    addresses = (own.get("endpoint"), own.get("base_url"), *map(env.get, _ENDPOINTS.get(prefix, ())))
    if scheme == "http" or str(next(filter(None, addresses), "")).startswith("http://"):
        client.setdefault("allow_http", "true")  # the URL says http
    if client and prefix:  # client options replace all of obstore's variables: add those
        found = {key: env.get(f"{prefix}{key.upper()}", "") for key in sorted(CLIENT)}
        client = {**{key: value for key, value in found.items() if value}, **client}
    made |= {"config": own, "client_options": client, "retry_config": _read_retry_options(given)}
    return {name: value for name, value in made.items() if value}


def _read_client_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Return obstore's ClientConfig from the options of a store. Raise UsageError."""
    out: dict[str, Any] = {key: value for key, value in given.items() if key in CLIENT}
    for key in ("connect_timeout", "read_timeout", "timeout", "pool_idle_timeout"):
        if key in out:
            out[key] = f"{_parse_seconds(key, out[key]) * 1000:.0f}ms"
    for key in ("proxy_ca_certificate", "root_certificate"):  # a file, or its contents
        if key in out and not out[key].startswith("-----BEGIN"):
            from ckpt_tools.storage import trust  # who can write the file decides which servers are believed

            try:
                with trust.label(key):
                    out[key] = trust.read(out[key], 16 << 20).decode("ascii")
            except (OSError, ValueError) as e:
                hint = "name a file of certificates (PEM)"
                raise UsageError(f"{key}: {out[key]} cannot be read", hint) from e
    return out


def _read_retry_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Return obstore's RetryConfig from the options of a store. Raise UsageError."""
    out = dict[str, Any]()
    for key, text in given.items():
        if key in ("max_retries", "backoff_base"):
            if not re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", text):
                raise UsageError(f"the option {key}={text} is not a number", f"use {key}=3")
            out[key] = int(float(text)) if key == "max_retries" else float(text)
        elif key in RETRY:
            out[key] = timedelta(seconds=_parse_seconds(key, text))
    of_backoff = [key for key in out if "backoff" in key]
    backoff = {key.removeprefix("backoff_"): out.pop(key) for key in of_backoff}
    return {**out, "backoff": backoff} if backoff else out


def is_on(options: Mapping[str, str], key: str) -> bool:
    """Return True if obstore takes the value of an option for true."""
    return options.get(key, "").lower() in ("1", "true", "yes", "on")


def _parse_seconds(key: str, text: str) -> float:
    """Return the seconds in the value of a time option, such as ``500ms``. Raise UsageError."""
    m = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h)?", text)
    if m is None:
        raise UsageError(f"the option {key}={text} is not a time", f"use {key}=30s, or 500ms, 2m")
    return float(m[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[m[2] or "s"]


def _nest_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Return fsspec's options as nested dicts: a dot in a key is a level; numbers and booleans are parsed."""
    out: dict[str, Any] = {}
    for key, text in given.items():
        *above, name = key.split(".")
        at, truth = out, {"true": True, "false": False}.get(text.lower())
        for step in above:
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                raise UsageError(f"the option {key} is within {step}, which has a value of its own")
        whole = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
        at[name] = whole if truth is None else truth
    return out


_LIFETIME = timedelta(minutes=9)
"""How long one answer of botocore is used: it renews credentials that expire within 10 minutes."""
_NATIVE = _split(
    "AWS_ACCESS_KEY_ID AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI"
)
"""Variables by which obstore gets credentials itself."""
_NATIVE_OPTIONS = _split(
    "container_credentials_full_uri container_credentials_relative_uri metadata_endpoint"
    " web_identity_token_file"
)
"""Options by which obstore gets credentials itself."""


def find_aws_login(own: Mapping[str, str], env: Mapping[str, str]) -> tuple[dict[str, str], Provider | None]:
    """Return the options of an S3 store with ``profile`` replaced by its region and endpoint, and the
    credentials provider; None if obstore finds credentials itself.

    As in AWS' own tools a profile given as an option goes before the environment, and ``AWS_PROFILE`` after
    it. Raise CannotLook if there are no credentials, UsageError if there is no such profile, and ImportError.
    """
    given = {key: value for key, value in own.items() if key != "profile"}
    profile = own.get("profile")
    if is_on({"skip_signature": env.get("AWS_SKIP_SIGNATURE", ""), **own}, "skip_signature"):
        return given, None
    if profile is None and (any(env.get(name) for name in _NATIVE) or _NATIVE_OPTIONS & given.keys()):
        return given, None
    try:
        import botocore.session
    except ImportError:
        if profile is None and not env.get("AWS_PROFILE"):
            return given, None  # the machine's own role, which obstore asks for
        raise
    session = botocore.session.Session(profile=profile)
    found = _make_provider(session, profile or env.get("AWS_PROFILE", ""))
    return {**_read_profile(session, env), **given}, found


def _make_provider(session: Any, profile: str) -> Provider:
    """Return a provider of credentials by botocore, tried once. Raise CannotLook and UsageError."""
    import botocore.exceptions as wrong

    try:
        found = session.get_credentials()
        if found is not None:
            found.get_frozen_credentials()
    except wrong.ProfileNotFound:
        text = f"there is no profile {profile!r} in ~/.aws"
        raise UsageError(text, "'aws configure list-profiles' lists them") from None
    except Exception as e:  # its class name alone: its text may hold secrets
        of, option = (f" of the profile {profile!r}", f" --profile {profile}") if profile else ("", "")
        text = f"credentials{of} could not be obtained, or have expired ({type(e).__name__})"
        hint = f"'aws sso login{option}', then run it again; 'aws sts get-caller-identity' says more"
        raise CannotLook(text, hint) from None
    if found is None:
        raise CannotLook(
            "there are no credentials for S3",
            "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in ('aws sso login');"
            " for a public bucket set CKPT_STORE_OPTION=skip_signature=true",
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(session, ttl=_LIFETIME)


def _read_profile(session: Any, env: Mapping[str, str]) -> dict[str, str]:
    """Return the region and endpoint in a profile (SDKs guide, "Service-specific endpoints")."""
    profile: Mapping[str, Any] = session.get_scoped_config()
    out = {}
    if not (env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")):
        out["region"] = profile.get("region")
    is_ignored = env.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    if not is_ignored and not any(map(env.get, _ENDPOINTS["AWS_"])):
        services = session.full_config.get("services", {}).get(profile.get("services"), {})
        out["endpoint"] = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    return {key: value for key, value in out.items() if value}
