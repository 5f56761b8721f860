"""URLs that carry a secret: a presigned URL is known by its name, without the query that signs it.

A query of http(s) may let whoever reads it in a log, a report or a cache fetch the object too. So what a
caller gives is cut in two where it enters: the name goes everywhere, and the query stays here, where nothing
but the client that sends it asks for it. Passwords and keys within a URL are refused: libraries read those
from the environment, from profiles and from files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from threading import Lock
from urllib.parse import parse_qsl, quote, unquote

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.urls import absolute

_WEB = re.compile(r"https?://", re.IGNORECASE)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)", re.IGNORECASE)
_CUT_PASSWORD = re.compile(r"(?!arn:)[^:@]*:(?!\d*$)[^@]*")
"""What stands before the first slash where that is one of a password: no port follows the colon."""
_SIGNS = re.compile(
    r"x-(?:amz|goog)-.*"  # AWS Signature Version 4, and Google's of the same kind
    r"|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|expires|security-token|policy|key-pair-id"
    r"|sv|ss|srt|sp|se|st|spr|sig|sr|si|sip|sdd|ses|skoid|sktid|skt|ske|sks|skv|skdutid|saoid|suoid|scid",
    re.IGNORECASE,
)
"""Names of what signs a request: AWS and Google, version 4 and before, CloudFront, and the shared access
signatures of Azure (learn.microsoft.com, "Create a service SAS" and "Create a user delegation SAS").
Whatever else is in a query says what is asked for.
"""
_SURE = re.compile(r"[?&](?:x-amz-signature|x-amz-credential|x-goog-signature|signature|sig)=", re.IGNORECASE)

_QUERY = re.compile(r"""(https?://[^\s?"'<>]*)\?[^\s"'<>]+""", re.IGNORECASE)
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|(ACCESS|ACCOUNT|API|SAS|_)_?KEY|CONNECTION_STRING", re.IGNORECASE
)
_SHORT = 8
"""Characters of a value that may stand in a text for something else."""

_lock = Lock()
_queries: dict[str, str] = {}


def named(url: str) -> str:
    """The name of what a caller means, which anybody may see; what is no URL of http(s) is its own name, and
    ``file://`` a path of this machine.

    Raises UsageError for a URL with a password in it, for a signature where only http(s) takes one, and for
    two URLs that differ in what their queries ask for: they would have one name.
    """
    m = _URL.match(url)
    if m is None:
        return url
    if m[1].lower() == "file":
        return absolute(url)
    host = m[2].rpartition("@")[2]
    if _CUT_PASSWORD.fullmatch(m[2]) and "@" in url[m.end() :]:
        raise _has_password(f"{m[1]}://")
    if not _WEB.match(url):
        if re.search(r":[^@]*@", m[2]):
            raise _has_password(host)
        if _SURE.search(url):
            raise UsageError(
                f"a signature is part of a URL of {m[1]}://{m[2]}, where none belongs",
                "presigned URLs begin with https://; else set its library's AZURE_STORAGE_SAS_TOKEN or such",
            )
        return url
    if "@" in m[2]:
        raise UsageError(
            f"a URL of {host} has a user or a password in it, which others can see",
            "take them out, and give a presigned URL, or the store behind it (s3://, gs://, az://)",
        )
    address, _, query = url.partition("#")[0].partition("?")
    if _SURE.search(unquote(address)):
        raise UsageError(
            f"the signature of a URL of {m[2]} is part of its name, which others can see",
            "give the URL as it was made, with its '?' (not '%3F'), and quote it for the shell",
        )
    name = absolute(address)
    if query:
        with _lock:
            if asked(_queries.setdefault(name, query)) != asked(query):
                raise UsageError(
                    f"two URLs differ in what they ask of {name}, and what follows '?' is no part of a name",
                    "ask about one of them at a time",
                )
            _queries[name] = query
    return name


def _has_password(of: str) -> UsageError:
    return UsageError(
        f"a URL of {of} has a password in it, which others can see",
        "take it out: the library reads it from the environment, a profile or a file (docs/stores.md)",
    )


def asked(query: str) -> tuple[tuple[str, str], ...]:
    """What a query asks for, without what signs it."""
    pairs = parse_qsl(query, keep_blank_values=True)
    return tuple(sorted(pair for pair in pairs if not _SIGNS.fullmatch(pair[0])))


def asked_of(name: str) -> str:
    """What the query of a name asks for, as a text that may be secret: only for digests."""
    query = _queries.get(name)
    return repr(asked(query)) if query and asked(query) else ""


def query_of(name: str) -> str:
    """The query to send with the name of an object; "" for none. Secret: not for messages, nor for files."""
    return _queries.get(name, "")


def redacted(text: str, env: Mapping[str, str]) -> str:
    """An unexpected text without the queries of URLs, and without what secret variables hold."""
    text = _QUERY.sub(r"\1?…", text)
    queries = [value for query in _queries.values() for _, value in parse_qsl(query)]
    secret = [value for name, value in env.items() if _SECRET.search(name)]
    for value in sorted((v for v in (*queries, *secret) if len(v) >= _SHORT), key=len, reverse=True):
        for spelled in {value, quote(value, safe=""), quote(value)}:
            text = text.replace(spelled, "…")
    return text


def words(argv: Sequence[str]) -> list[str]:
    """A command line in which every URL is a name; what follows ``--`` is another command, and stays."""
    own = list(argv).index("--") if "--" in argv else len(argv)
    out = list(argv)
    for i, word in enumerate(argv[:own]):
        flag, mark, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if _URL.match(value):
            out[i] = f"{flag}{mark}{named(value)}"
    return out
