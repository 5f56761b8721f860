"""Translates an error of a store's library into the OSError that the same failure of a local file gives."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.stalls import Stalled
from ckpt_tools.storage.stores.store import Replaced

_STATUS = re.compile(r"(?:status code:|[Cc]lient error|[Ss]erver error) \W?(\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,80})</Code>")
_NUMBERS = {
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError", "GatedRepoError"), errno.EACCES),
    **dict.fromkeys(("NoCredentialsError", "401", "403"), errno.EACCES),
    "AlreadyExistsError": errno.EEXIST,
    "NotSupportedError": errno.EOPNOTSUPP,
    "NotImplementedError": errno.EOPNOTSUPP,
    "HfUriError": errno.EOPNOTSUPP,  # of huggingface_hub 2: above its repositories there is nothing to list
    "InvalidPathError": errno.EINVAL,
}
"""Errors of the libraries, by class name, so that no library is imported here; and by HTTP status."""
_BROKEN_OFF = "error decoding response body|response body error|connection closed|Connection reset"
"""Signs of an answer that had begun: the library does not request its rest."""
_LATE = "kind: Timeout"
"""Sign of an answer that never came: the library has waited and tried for minutes (``retry_timeout``)."""
_NO_STORE = frozenset({"NoSuchBucket", "ContainerNotFound", "ResourceNotFound"})


def to_os_error(e: Exception, url: str) -> OSError:
    """Return the OSError for a library's error, quoting nothing sent; ECONNRESET if an answer broke off."""
    if isinstance(e, (Stalled, Replaced)):
        return e
    kind, text, status, code = type(e).__name__, str(e), read_status(e), read_code(e)
    if kind == "PreconditionError" or status in ("412", "416"):
        return Replaced(url)  # 416: every range asked for lay within the old object
    if _is_missing(e, status) and code not in _NO_STORE:
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    if isinstance(e, OSError) and e.errno:  # of the system; a library's text may hold secrets that were sent
        return OSError(e.errno, os.strerror(e.errno), url)
    is_broken_off = not status and _LATE not in text and re.search(_BROKEN_OFF, text)
    other = errno.ECONNRESET if is_broken_off else errno.EIO
    number = _NUMBERS.get(kind) or _NUMBERS.get(status, other)
    return OSError(number, _describe_cause(kind, text, code, status), url)


def _is_missing(e: Exception, status: str) -> bool:
    """Return True if there is no object: only boto3 and urllib have no error of their own for it."""
    return isinstance(e, FileNotFoundError) or (status == "404" and not _STATUS.search(str(e)))


def read_status(e: Exception) -> str:
    """Return the HTTP status of a store's answer; "" if none came."""
    if isinstance(e, HTTPError):
        e.close()  # the error holds an open connection
        return str(e.code)
    response: Any = getattr(e, "response", None)
    if isinstance(response, dict):  # of boto3
        return str(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or "")
    return next(iter(_STATUS.findall(str(e))), "")


def read_code(e: Exception) -> str:
    """Return the code in a store's answer; "" if it has none."""
    response: Any = getattr(e, "response", None)
    if isinstance(response, dict):
        code = re.sub(r"[^A-Za-z0-9]", "", str(response.get("Error", {}).get("Code") or ""))[:80]
        return "" if code.isdecimal() else code
    return next(iter(_CODE.findall(str(e))), "")


def client_error(e: Exception, url: str, given: Mapping[str, Any]) -> OSError | UsageError:
    """Return the error for a client that could not be made: its options are wrong, or one is missing."""
    text, scheme = str(e), url.partition("://")[0]
    unknown = re.search(r"Configuration key: '([^']*)'", text)
    if unknown or "does not accept any configuration" in text:
        key = unknown[1] if unknown else next(iter(given.get("config", {})), "")
        text = f"a store of {scheme}:// has no option {key!r}"
        hint = "docs/stores.md says where each library lists its keys; options of one store are a table of"
        return UsageError(text, f'{hint} ckpt.toml ([store."URL"])')
    words = f"its options, or the variables of {scheme}:// in the environment, are not accepted"
    known = (missing for sign, missing in _MISSING.items() if sign in text)
    return OSError(errno.EINVAL, next(known, f"{words} ({type(e).__name__})"), url)


_MISSING = {
    "Account must be specified": "no storage account is named: set CKPT_STORE_OPTION=account_name=NAME, or"
    " set AZURE_STORAGE_ACCOUNT_NAME",
    "Missing SecretAccessKey": "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not: set both, or"
    " AWS_PROFILE",
    "Missing AccessKeyId": "AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not: set both, or"
    " AWS_PROFILE",
    "service account file": "the file of the service account cannot be read: see"
    " GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_SERVICE_ACCOUNT",
    "Invalid Access Key": "the account's key is none: see AZURE_STORAGE_ACCOUNT_KEY",
    "SAS query pair": "the signature is none: see AZURE_STORAGE_SAS_TOKEN",
}
"""By a sign in the message of a client that cannot be made: the cause, and what to do."""


def _describe_cause(kind: str, text: str, code: str, status: str) -> str:
    """Return the cause as far as it is known, and what to do; nothing that was sent is quoted."""
    answer = "the store answers " + " ".join(filter(None, (status, code)))
    if kind == "NoCredentialsError" or re.search(_NO_CREDENTIALS, text):
        return _NO_LOGIN
    if words := _CODES.get(code) or _CODES.get(status):
        return f"{answer}: {words}"
    if kind in _KINDS:
        return _KINDS[kind]
    if status in ("401", "403"):
        right = next(right for signs, right in _RIGHTS.items() if re.search(signs, text))
        return f"{answer}: these credentials must not {right}), or they are not valid any more"
    if code or status:
        return answer
    if kind == "InvalidPathError":
        found = re.search(r'[Pp]ath "(.*?)"(?:: Encountered| contained)', text, re.DOTALL)
        return f"{f'the key {found[1][:200]!r}' if found else 'a key'} {_BAD_KEY}"
    known = (words for signs, words in _SIGNS.items() if re.search(signs, text))
    return next(known, f"the store did not answer as it should ({kind})")


NO_URL = "it has an empty name, '..' or a control character in it, which no path can have: correct the URL"
"""The message about a URL that cannot be a path."""
_BAD_KEY = (
    "holds an empty name, '.', '..' or a control character, and hides what is listed with it: rename or"
    " delete it, or ask about a directory that does not hold it"
)
_RIGHTS = {
    "list request": "list what it has (s3:ListBucket, storage.objects.list, Storage Blob Data Reader",
    "performing PUT": "write it (s3:PutObject, storage.objects.create, Storage Blob Data Contributor",
    r"\?delete|performing DELETE": "delete it (s3:DeleteObject, storage.objects.delete, Storage Blob Data"
    " Contributor",
    r"\?versionId=": "read a version of it (s3:GetObjectVersion, storage.objects.get",
    "": "read it (s3:GetObject, storage.objects.get, Storage Blob Data Reader",
}
"""By signs in the library's text: the right that the request needs."""
_REGION = "the bucket is in another region: set CKPT_STORE_OPTION=region=REGION"
_EXPIRED = "the session token has expired, or is not valid: renew it ('aws sso login'), then run it again"
_WRONG = "the credentials are not valid here: check them, the endpoint and this machine's clock"
_CODES = {
    "NoSuchBucket": "there is no such bucket: check its name, and the endpoint",
    "ContainerNotFound": "there is no such container: check its name, and account_name",
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired", "InvalidToken"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed"), _WRONG),
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it (chronyc tracking, timedatectl)",
    "InvalidObjectState": "it is archived: have it restored first ('aws s3api restore-object')",
    "BlobArchived": "it is in the archive tier: have it brought back first ('az storage blob set-tier')",
    **dict.fromkeys(("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "307"), _REGION),
    "IllegalLocationConstraintException": _REGION,
}
"""Codes of S3 (API reference, "List of error codes"), which Google's XML API has too, and of Azure; and HTTP
status.
"""
_NO_CREDENTIALS = r"169\.254\.169\.254|/latest/api/token|computeMetadata|metadata\.google|token request"
"""Signs that the machine was asked for a role that it lacks, after all other ways to log in."""
_NO_LOGIN = (
    "there are no credentials: log in ('aws sso login', 'gcloud auth application-default login'), or set the"
    " library's variables (docs/stores.md); for a public bucket set CKPT_STORE_OPTION=skip_signature=true"
)
NO_RANGES = "the server sends whole files alone, where a part was asked for: copy the file to a disk"
_NOBODY = "nothing answers at the store's address: check the endpoint, the host and its port"
_NO_KIND = "what answers is not a store of this kind: check the endpoint"
_KINDS = {
    "NoValidConnectionsError": _NOBODY,
    "EndpointConnectionError": _NOBODY,
    "HfUriError": "there is no repository or revision of this name (hf://ORGANISATION/NAME@REVISION), or"
    " HF_TOKEN may not see it",
    "GatedRepoError": "the repository is gated: ask for access on its page on the Hub, and set HF_TOKEN",
}
"""Errors whose class name tells the cause."""
_SIGNS = {
    "Could not parse path": NO_URL,  # about the caller's URL
    "without LOCATION": f"the store sends us elsewhere: {_REGION}",
    f"{_LATE}|operation timed out": "the store did not answer in time: --budget ends such waits, and"
    " CKPT_STORE_OPTION timeout=SECONDS each of them",
    "Connection refused": _NOBODY,
    "dns error|failed to lookup address": f"{_NOBODY} (DNS does not know it)",
    "builder error": "plain http:// is not allowed to this store: set CKPT_STORE_OPTION=allow_http=true, or"
    " https://",
    _BROKEN_OFF: "the store's answer broke off",
    "non-partial response|Range request not supported": NO_RANGES,
    "missing from response|cycle|Got invalid": _NO_KIND,
    "certificate": "the store's certificate is not accepted: CKPT_STORE_OPTION=root_certificate=FILE names"
    " whom to believe",
}
"""Signs in a library's text, the surest first."""
