"""Translates an error of a store's library into the OSError that the same failure of a local file gives."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError

from ckpt_tools.errors import UsageError
from ckpt_tools.storage.stalls import Stalled
from ckpt_tools.storage.stores.store import Replaced

_STATUS = re.compile(r"status code: (\d{3})|[Cc]lient error \W?(\d{3})|[Ss]erver error \W?(\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,80})</Code>")
_NAMES = {
    "PermissionDeniedError": errno.EACCES,
    "UnauthenticatedError": errno.EACCES,
    "AlreadyExistsError": errno.EEXIST,
    "NotSupportedError": errno.EOPNOTSUPP,
    "NotImplementedError": errno.EOPNOTSUPP,
    "HfUriError": errno.EOPNOTSUPP,  # of huggingface_hub 2: above its repositories there is nothing to list
    "InvalidPathError": errno.EINVAL,
    "GatedRepoError": errno.EACCES,
}
"""Errors of the libraries, by class name, so that no library is imported here."""


def to_os_error(e: Exception, url: str) -> OSError:
    """Return the OSError for a library's error, quoting nothing sent; ECONNRESET if an answer broke off."""
    if isinstance(e, Stalled):
        return e
    kind, text = type(e).__name__, str(e)
    code = code_of(e)
    status = next(("".join(found) for found in _STATUS.findall(text)), "")
    if kind == "PreconditionError" or status == "416" or getattr(e, "errno", None) == errno.EBUSY:
        return Replaced(url)  # 416: every range asked for lay within the old object
    if isinstance(e, FileNotFoundError) and code not in _NO_STORE:
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    number = _NAMES.get(kind) or {"401": errno.EACCES, "403": errno.EACCES}.get(status, errno.EIO)
    broken_off = any(sign in text for sign in BROKEN_OFF) and _LATE not in text
    if number == errno.EIO and not status and broken_off:
        number = errno.ECONNRESET
    return OSError(number, _describe_cause(kind, text, code, status), url)


BROKEN_OFF = ("error decoding response body", "response body error", "connection closed", "Connection reset")
"""Signs of an answer that had begun: the library does not request its rest."""
_LATE = "kind: Timeout"
"""Sign of an answer that never came: the library has waited and tried for minutes (``retry_timeout``)."""
_KEY = re.compile(r'[Pp]ath "(.*?)"(?:: Encountered| contained)', re.DOTALL)
_NO_STORE = frozenset({"NoSuchBucket", "ContainerNotFound", "ResourceNotFound"})


def code_of(e: Exception) -> str:
    """Return the code in the XML of a store's answer; "" if it has none."""
    return next(iter(_CODE.findall(str(e))), "")


def checksum_error(e: Exception, url: str) -> OSError:
    """Return the OSError for a failed request for checksums, by boto3 or urllib."""
    if isinstance(e, Stalled):
        return e
    response: Any = getattr(e, "response", None)
    answer = response if isinstance(response, dict) else {}
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or getattr(
        e, "code", 0 if answer else None
    )
    code = re.sub(r"[^A-Za-z0-9]", "", str(answer.get("Error", {}).get("Code") or ""))[:80]
    if isinstance(e, HTTPError):
        e.close()  # the error holds an open connection
    if not isinstance(status, int):
        text = f"the store did not tell its checksums ({type(e).__name__})"
        return OSError(errno.EACCES if type(e).__name__ == "NoCredentialsError" else errno.EIO, text, url)
    if status == 412:
        return Replaced(url)
    if status == 404:
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    words = f"{status} {code}" if code not in ("", str(status)) else str(status)
    number = errno.EACCES if status in (401, 403) else errno.EIO
    return OSError(number, f"asked for checksums, the store answers {words}", url)


def client_error(e: Exception, url: str, given: Mapping[str, Any]) -> OSError | UsageError:
    """Return the error for a client that could not be made: its options are wrong, or one is missing."""
    text, scheme = str(e), url.partition("://")[0]
    unknown = re.search(r"Configuration key: '([^']*)'", text)
    if unknown or "does not accept any configuration" in text:
        key = unknown[1] if unknown else next(iter(given.get("config", {})), "")
        text = f"a store of {scheme}:// has no option {key!r}"
        hint = "docs/stores.md says where each library lists its keys; options of one store are a table of"
        return UsageError(text, f'{hint} ckpt.toml ([store."URL"])')
    for sign, words in _MISSING.items():
        if sign in text:
            return OSError(errno.EINVAL, words, url)
    m = re.search(r'failed to parse "[^"]*" as (\w+)', text)
    what = f": what should be a {m[1].lower()} is none" if m else ""
    text = f"its options, or the variables of {scheme}:// in the environment, are not accepted{what}"
    return OSError(errno.EINVAL, f"{text} ({type(e).__name__})", url)


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
    "SAS query pair": "the shared access signature is none: see AZURE_STORAGE_SAS_TOKEN",
}
"""By a sign in the message of a client that cannot be made: the cause, and what to do."""


NO_URL = "it has an empty name, '..' or a control character in it, which no path can have: correct the URL"
"""The message about a URL that cannot be a path."""


def _describe_cause(kind: str, text: str, code: str, status: str) -> str:
    """Return the cause as far as it is known, and what to do; nothing that was sent is quoted."""
    if any(sign in text for sign in _NO_CREDENTIALS):
        return _NO_LOGIN
    answer = "the store answers " + " ".join(filter(None, (status, code)))
    if code in _CODES:
        return f"{answer}: {_CODES[code]}"
    if kind in _KINDS:
        return _KINDS[kind]
    if status in ("401", "403"):
        return f"{answer}: {_describe_right(text)}"
    if status in ("301", "307") or "without LOCATION" in text:
        return f"the store sends us elsewhere: {_REGION}"
    if code or status:
        return answer
    if kind == "InvalidPathError":
        return _describe_bad_key(text)
    if kind == "ValueError" and "Could not parse path" in text:  # about the caller's URL
        return NO_URL
    known = (words for sign, words in _SIGNS.items() if sign in text)
    return next(known, f"the store did not answer as it should ({kind})")


def _describe_bad_key(text: str) -> str:
    """Return the message about a key that is no path, which obstore's error quotes."""
    m = _KEY.search(text)
    key = f"the key {m[1][:200]!r}" if m else "a key"
    what = f"{key} holds an empty name, '.', '..' or a control character, and hides what is listed with it"
    return f"{what}: rename or delete it, or ask about a directory that does not hold it"


def _describe_right(text: str) -> str:
    """Return which right is missing, if the library's text shows it."""
    what = next((what for sign, what in _RIGHTS.items() if sign in text), _RIGHTS[""])
    return f"these credentials must not {what}), or they are not valid any more"


_RIGHTS = {
    "list request": "list what it has (s3:ListBucket, storage.objects.list, Storage Blob Data Reader",
    "performing PUT": "write it (s3:PutObject, storage.objects.create, Storage Blob Data Contributor",
    "?delete": "delete it (s3:DeleteObject, storage.objects.delete, Storage Blob Data Contributor",
    "performing DELETE": "delete it (s3:DeleteObject, storage.objects.delete, Storage Blob Data Contributor",
    "?versionId=": "read a version of it (s3:GetObjectVersion, storage.objects.get",
    "": "read it (s3:GetObject, storage.objects.get, Storage Blob Data Reader",
}
"""By a sign in the library's text: the right that the request needs."""


_REGION = "the bucket is in another region: set CKPT_STORE_OPTION=region=REGION"
_RENEW = "renew the credentials ('aws sso login', or where the variables come from), then run it again"
_CODES = {
    "NoSuchBucket": "there is no such bucket: check its name, and the endpoint",
    "ContainerNotFound": "there is no such container: check its name, and account_name",
    "InvalidBucketName": "no bucket can have this name",
    "ExpiredToken": f"the session token has expired: {_RENEW}",
    "TokenRefreshRequired": f"the session token has expired: {_RENEW}",
    "InvalidToken": f"the session token is not valid: {_RENEW}",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it (chronyc tracking, timedatectl)",
    "InvalidAccessKeyId": "the store does not know this access key: check AWS_PROFILE or AWS_ACCESS_KEY_ID,"
    " and the endpoint",
    "SignatureDoesNotMatch": "the secret key does not fit the access key, or the presigned URL was changed",
    "AuthenticationFailed": "the credentials are not valid here, or have expired, or this machine's clock is"
    " wrong",
    "InvalidObjectState": "it is archived: have it restored first ('aws s3api restore-object')",
    "BlobArchived": "it is in the archive tier: have it brought back first ('az storage blob set-tier')",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
}
"""Codes of S3 (API reference, "List of error codes"), which Google's XML API has too, and of Azure."""
_NO_CREDENTIALS = (
    *("169.254.169.254", "/latest/api/token", "computeMetadata", "metadata.google", "token request"),
)
"""Signs that the machine was asked for a role that it lacks, after all other ways to log in."""
_NO_LOGIN = (
    "there are no credentials: log in ('aws sso login', 'gcloud auth application-default login'), or set the"
    " library's variables (docs/stores.md); for a public bucket set CKPT_STORE_OPTION=skip_signature=true"
)
NO_RANGES = "the server sends whole files alone, where a part was asked for: copy the file to a disk"
_KINDS = {
    "NoValidConnectionsError": "nothing answers at the store's address: check the host and its port",
    "HfUriError": "there is no repository or revision of this name (hf://ORGANISATION/NAME@REVISION), or"
    " HF_TOKEN may not see it",
    "RevisionNotFoundError": "the repository has no such branch, tag or commit",
    "GatedRepoError": "the repository is gated: ask for access on its page on the Hub, and set HF_TOKEN",
}
"""Errors whose class name tells the cause."""
_SIGNS = {
    _LATE: "the store did not answer in time: --budget ends such waits, and CKPT_STORE_OPTION"
    " timeout=SECONDS each of them",
    "Connection refused": "nothing answers at the store's address (connection refused): check the endpoint",
    "dns error": "the store's address is not known (DNS): check the endpoint and the region",
    "failed to lookup address": "the store's address is not known (DNS): check the endpoint and the region",
    "builder error": "plain http:// is not allowed to this store: set CKPT_STORE_OPTION=allow_http=true, or"
    " https://",
    "operation timed out": "the store did not answer in time",
    "error decoding response body": "the store's answer broke off",
    "response body error": "the store's answer broke off",
    "non-partial response": NO_RANGES,
    "Range request not supported": NO_RANGES,
    "missing from response": "what answers is not a store of this kind: check the endpoint",
    "cycle": "the store sends us in circles: check the endpoint",
    "connection closed": "the store closed the connection",
    "Connection reset": "the store closed the connection",
    "certificate": "the store's certificate is not accepted: CKPT_STORE_OPTION=root_certificate=FILE names"
    " whom to believe",
    "Got invalid": "what answers is not a store of this kind: check the endpoint",
}
