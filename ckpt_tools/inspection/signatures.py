"""Signatures of OpenSSF model signing, checked with a public key by the package that writes them.

The package says whether a signature fits the key, and that what it signs is what we read of it: whether the
files are those is compared by their digests, as it is without a key (formats/manifests/model_signing.py).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.manifests.model_signing import Statement, read_statement
from ckpt_tools.model.report import Report
from ckpt_tools.storage import ShortRead, opened
from ckpt_tools.storage.local import on_this_machine

if TYPE_CHECKING:
    from model_signing.manifest import Manifest


def is_signature(path: str) -> bool:
    """Whether a file may be a signature, by its name."""
    return path.endswith(".sig")


EXTRA = "pip install 'ckpt-tools[sign]'"


class Checked(NamedTuple):
    """What a signature signs, and why it counts for nothing ("" where it fits the key)."""

    statement: Statement | None
    wrong: str


class Signatures:
    """Checks each signature once, with the public ``key`` in a PEM file. Raises UsageError."""

    def __init__(self, key: str) -> None:
        try:
            from model_signing import verifying
        except ImportError:
            raise UsageError("CKPT_VERIFY_KEY needs the package model-signing", EXTRA) from None
        self._verifier = verifying
        self._key, self._known = key, dict[str, Checked]()
        usable(key, lambda: verifying.Config().use_elliptic_key_verifier(public_key=Path(key)))

    def checked(self, path: str) -> Checked:
        """What the signature in this file is worth."""
        if path not in self._known:
            self._known[path] = self._check(path)
        return self._known[path]

    def valid(self, path: str) -> Statement | None:
        """What the signature in this file signs; None where it counts for nothing."""
        found = self.checked(path)
        return None if found.wrong else found.statement

    def why_not(self, report: Report, behind: Iterable[str]) -> str:
        """Return why no signature vouches for a file, "" where one does; ``behind`` are its indexes."""
        if report.format == "model_signing" and is_signature(report.path):
            return self.checked(report.path).wrong
        signed = [path for path in sorted(behind) if is_signature(path)]
        if any(self.valid(path) for path in signed):
            return ""
        why = (f"{os.path.basename(path)}: {self.checked(path).wrong}" for path in signed)
        return "; ".join(why) or "no signature names this file"

    def _check(self, path: str) -> Checked:
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(opened(path))
                statement = read_statement(source)
                file = Path(stack.enter_context(on_this_machine(source)))
            except (Damage, OSError, ShortRead) as e:
                return Checked(None, f"it cannot be read: {e}")
            try:
                read = manifest_of(statement.model, statement.serialization, statement.resources)
                config = self._verifier.Config().use_elliptic_key_verifier(public_key=Path(self._key))
                with contextlib.redirect_stdout(io.StringIO()):  # it warns of old signatures there
                    config.set_hashing_config(Given(read)).verify(file.parent, file)
            except Exception as e:  # whatever the package makes of a hostile file: it has not said yes
                return Checked(statement, f"it does not fit the key: {str(e) or type(e).__name__}")
        return Checked(statement, "")


def usable(key: str, load: Callable[[], object]) -> None:
    """Raises UsageError where a key cannot be loaded."""
    try:
        load()
    except OSError as e:
        raise UsageError(f"the key {key!r} cannot be read: {e.strerror}", "name a file in PEM format") from e
    except (ValueError, TypeError, AttributeError) as e:
        hint = "make a pair: openssl ecparam -name prime256v1 -genkey -noout, and openssl ec -pubout"
        raise UsageError(f"{key!r} holds no usable key: {e}", hint) from e


class Given:
    """In place of reading a model: digests that are known already."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def hash(self, model_path: object, *, files_to_hash: object = None) -> Manifest:  # noqa: ARG002
        """As ``model_signing.hashing.Config`` has it."""
        return self._manifest

    def add_ignored_paths(self, *, model_path: object, paths: object) -> None:
        """Nothing is looked for that could be ignored."""


def manifest_of(
    name: str, serialization: Mapping[str, object], resources: Iterable[tuple[object, object, object]]
) -> Manifest:
    """Names and digests, as the package has them. Raises ValueError and KeyError."""
    from model_signing._hashing.hashing import Digest
    from model_signing.manifest import Manifest, SerializationType

    kind = SerializationType.from_args(dict(serialization))
    rows = [kind.new_item(str(n), Digest(str(a), bytes.fromhex(str(d)))) for n, a, d in resources]
    return Manifest(name, rows, kind)
