"""The secret that the nodes of a job share, and what it proves: that one of them put up a value, for this job
and under this name.
"""

from __future__ import annotations

import hashlib
import hmac

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.model.frozen import field, frozen
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust

FLAG = "--secret-file"
LEAST, MOST = 32, 4096
"""Bytes of a secret."""
MAKE = "(umask 077; head -c 32 /dev/urandom | base64 >FILE)"
_DIFFERENT = 8
"""Different bytes that a secret has, at least: a file of zeros is what a crash leaves of one."""
_MARK = b"ckpt-tools/1:"
_TAG = hashlib.sha256().digest_size


class NotOurs(ValueError):
    """No node of this job has put this up."""


def read(path: str, trusted: Trust = OURS) -> bytes:
    """The secret in a file that only we or root can read and write. Raises UsageError for any other,
    CannotLook where it cannot be read.
    """
    hint = f"make one that all nodes see, or copy it to each: {MAKE}"
    try:
        found = trust.read(path, MOST, trusted, private=True).strip()
    except trust.Untrusted as e:
        raise UsageError(f"{FLAG}: {e}", e.hint) from e
    except FileNotFoundError as e:
        raise UsageError(f"{FLAG} {path} is not there", hint) from e
    except IsADirectoryError as e:
        raise UsageError(f"{FLAG} {path} is a directory", "name the file in it") from e
    except OSError as e:
        raise CannotLook(
            f"{FLAG} {path} cannot be read: {e.strerror}", "make it readable for this user alone: chmod 600"
        ) from e
    if len(found) < LEAST:
        raise UsageError(f"{FLAG} {path} holds {len(found)} bytes, and a secret needs {LEAST} or more", hint)
    if len(set(found)) < _DIFFERENT:
        raise UsageError(f"{FLAG} {path} holds no random bytes", hint)
    return found


@frozen
class Seal:
    """Signs for one job. HMAC-SHA256 with a key of this job alone: what was signed for another job, or under
    another name, does not pass.

    A name on a board says which node wrote it and, once all have met, in which meeting: that one has a number
    that was never used.
    """

    key: bytes = field(repr=False)

    @staticmethod
    def of(secret: bytes, job: str) -> Seal:
        """The seal of a job; of an empty ``secret`` it shows mistakes and keeps nobody out."""
        return Seal(
            hmac.new(
                secret, b"ckpt-tools meeting 1\0" + job.encode("utf-8", "surrogateescape"), "sha256"
            ).digest()
        )

    def tag(self, *words: bytes) -> bytes:
        """The same for the same words in the same order, and for no others."""
        mac = hmac.new(self.key, digestmod="sha256")
        for word in words:
            mac.update(len(word).to_bytes(8, "big"))
            mac.update(word)
        return mac.digest()

    def proof(self, *words: str) -> str:
        """The same as a text."""
        return self.tag(b"proof", *(w.encode() for w in words)).hex()

    def closed(self, name: str, value: bytes) -> bytes:
        """A value with the tag that shows who put it up under this name."""
        return _MARK + self.tag(b"value", name.encode(), value) + value

    def opened(self, name: str, data: bytes) -> bytes:
        """The value again. Raises NotOurs before anything looks into it."""
        mark, tag, value = data[: len(_MARK)], data[len(_MARK) : len(_MARK) + _TAG], data[len(_MARK) + _TAG :]
        if mark != _MARK or not hmac.compare_digest(tag, self.tag(b"value", name.encode(), value)):
            raise NotOurs(name)
        return value


def shown(proof: str, wanted: str) -> bool:
    """Whether a proof is the wanted one, in a time that tells nothing about it."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), wanted.encode())
