"""URLs that carry a secret: a presigned URL is known by its name, the URL without the query that signs it.

Whoever reads the query of an http(s) URL in a log, a report or a cache may fetch the object too. So each URL
is cut in two where it enters: the name goes everywhere, the query only to the client that sends it. Passwords
and keys within a URL are refused: libraries read them from the environment, from profiles and from files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from threading import Lock
from urllib.parse import parse_qsl, quote, unquote

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.urls import to_absolute

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)", re.IGNORECASE)
_CUT_PASSWORD = re.compile(r"(?!arn:)[^:@]*:(?!\d*$)[^@]*")
"""Matches the text before the first slash if it begins a password, because no port follows its colon."""
_SIGNS = re.compile(
    r"x-(?:amz|goog)-.*"  # AWS Signature Version 4, and Google's of the same kind
    r"|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|expires|security-token|policy|key-pair-id"
    r"|sv|ss|srt|sp|se|st|spr|sig|sr|si|sip|sdd|ses|skoid|sktid|skt|ske|sks|skv|skdutid|saoid|suoid|scid",
    re.IGNORECASE,
)
"""Query parameters that sign a request: AWS and Google, version 4 and before, CloudFront, and the shared
access signatures of Azure (learn.microsoft.com, "Create a service SAS" and "Create a user delegation SAS").
All other parameters say which content is asked for.
"""
_SURE = re.compile(r"[?&](?:x-amz-signature|x-amz-credential|x-goog-signature|signature|sig)=", re.IGNORECASE)

_QUERY = re.compile(r"""(https?://[^\s?"'<>]*)\?[^\s"'<>]+""", re.IGNORECASE)
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|(ACCESS|ACCOUNT|API|SAS|_)_?KEY|CONNECTION_STRING", re.IGNORECASE
)
_SHORT = 8  # shorter values are not redacted: the same characters may stand in a text for something else

_lock = Lock()
_queries: dict[str, str] = {}


def strip_query(url: str) -> str:
    """Return the name of a URL, which anybody may see: an http(s) URL without its query, a local path for
    ``file://``, any other text unchanged. Keeps the query for ``find_query``.

    Raise UsageError for a URL with a password in it, for a signature in a scheme that takes none, and for two
    URLs of one name whose queries ask for different content.
    """
    m = _URL.match(url)
    if m is None:
        return url
    if m[1].lower() == "file":
        return to_absolute(url)
    is_web = m[1].lower() in ("http", "https")
    address, _, query = url.partition("#")[0].partition("?") if is_web else (url, "", "")
    has_user = "@" in m[2] if is_web else re.search(r":[^@]*@", m[2])
    is_cut = _CUT_PASSWORD.fullmatch(m[2]) and "@" in url[m.end() :]
    if has_user or is_cut or _SURE.search(unquote(address) if is_web else url):
        raise UsageError(
            f"a URL of {m[1]}:// has a user, a password or a signature in it, which others can see",
            "take it out: libraries read secrets from the environment, a profile or a file (docs/stores.md);"
            " a presigned URL begins with https:// and is quoted as it was made, with '?' and not '%3F'",
        )
    if not is_web:
        return url
    name = to_absolute(address)
    if query:
        with _lock:
            if asked(_queries.setdefault(name, query)) != asked(query):
                raise UsageError(
                    f"two URLs differ in what they ask of {name}, and what follows '?' is no part of a name",
                    "ask about one of them at a time",
                )
            _queries[name] = query
    return name


def asked(query: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a query that select content, sorted, without those that sign the request."""
    pairs = parse_qsl(query, keep_blank_values=True)
    return tuple(sorted(pair for pair in pairs if not _SIGNS.fullmatch(pair[0])))


def asked_of(name: str) -> str:
    """Return the parameters of a name's query that select content, or "". May be secret: only for digests."""
    query = _queries.get(name)
    return repr(asked(query)) if query and asked(query) else ""


def find_query(name: str) -> str:
    """Return the query to send with the name of an object, or "". Secret: for no message, for no file."""
    return _queries.get(name, "")


def redact(text: str, env: Mapping[str, str]) -> str:
    """Return an unexpected text without the queries of URLs and without the values of secret variables."""
    text = _QUERY.sub(r"\1?…", text)
    queries = [value for query in _queries.values() for _, value in parse_qsl(query)]
    secret = [value for name, value in env.items() if _SECRET.search(name)]
    for value in sorted((v for v in (*queries, *secret) if len(v) >= _SHORT), key=len, reverse=True):
        for spelled in {value, quote(value, safe=""), quote(value)}:
            text = text.replace(spelled, "…")
    return text


def words(argv: Sequence[str]) -> list[str]:
    """Return a command line with URLs replaced by names; words after ``--`` are another command's."""
    own = list(argv).index("--") if "--" in argv else len(argv)
    out = list(argv)
    for i, word in enumerate(argv[:own]):
        flag, mark, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if _URL.match(value):
            out[i] = f"{flag}{mark}{strip_query(value)}"
    return out
