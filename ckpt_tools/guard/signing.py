"""Signatures over a sealed directory or each sealed file, as ``model_signing verify key`` accepts them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ckpt_tools.errors import UsageError
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.manifests.model_signing import read_statement
from ckpt_tools.formats.seals.document import FRAGMENTS, NAME, SIGNATURE, name_seal, name_signature
from ckpt_tools.guard.targets import Target, files_of
from ckpt_tools.inspection.seals import EXTRA, Given, manifest_of, usable
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.storage import LocalSource, ShortRead

DIGEST = "sha256"
_IGNORED = (SIGNATURE, NAME, FRAGMENTS, ".git", ".gitattributes", ".github", ".gitignore")
"""Names that model_signing ignores by itself, and names of our own files beside a checkpoint's."""


class Signature(NamedTuple):
    """A signature to be made: its path, the name of the signed model, and name -> path of each file."""

    path: str
    model: str
    files: dict[str, str]


def list_signatures(target: Target) -> Iterator[Signature]:
    """Yield one signature if the target is a directory that holds nothing else, else one for each file:
    model_signing rejects a directory with a file that the signature does not name.
    """
    if target.base == target.path and set(files_of(target.path)) == set(target.files):
        names = {os.path.relpath(path, target.base): path for path in target.files}
        yield Signature(f"{target.path}/{SIGNATURE}", os.path.basename(target.path), names)
        return
    for path in target.files:
        home, name = os.path.split(path)
        yield Signature(f"{home}/{name_signature(name)}", name, {".": path})


class Signer:
    """Signs with a private ``key`` in a PEM file. Raises UsageError if the key or the package is missing."""

    def __init__(self, key: str) -> None:
        try:
            from model_signing import signing
        except ImportError:
            raise UsageError("--sign-key needs the package model-signing", EXTRA) from None
        self._key, self._config = key, signing.Config
        usable(key, lambda: signing.Config().use_elliptic_key_signer(private_key=Path(key)))

    def is_signed(self, target: Target) -> bool:
        """Return whether there are signatures of exactly these files, whoever made them."""
        for s in list_signatures(target):
            try:
                with LocalSource(s.path) as source:
                    signed = {str(name) for name, _, _ in read_statement(source).resources}
            except (Damage, OSError, ShortRead):
                return False
            if signed != set(s.files):
                return False
        return True

    def sign(
        self, target: Target, files: Sequence[SealedFile], algorithm: str
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (path, content) of each signature. The seals and signatures of single files are no part."""
        single = [
            f"{os.path.dirname(path)}/{make_name(os.path.basename(path))}"
            for path in target.files
            for make_name in (name_seal, name_signature)
        ]
        hidden = (path for path in single if path != target.seal and os.path.lexists(path))
        ignored = [*_IGNORED, *(os.path.relpath(path, target.base) for path in hidden)]
        digests = {
            os.path.normpath(f"{target.base}/{f.path}"): f.digest if algorithm == DIGEST else f.also[DIGEST]
            for f in files
        }
        for s in list_signatures(target):
            serialization = {
                "method": "files",
                "hash_type": DIGEST,
                "allow_symlinks": any(map(os.path.islink, s.files.values())),
                "ignore_paths": ignored,
            }
            rows = [(name, DIGEST, digests[path]) for name, path in s.files.items()]
            config = self._config().use_elliptic_key_signer(private_key=Path(self._key))
            config.set_hashing_config(Given(manifest_of(s.model, serialization, rows)))
            with tempfile.TemporaryDirectory() as aside:
                config.sign(Path(target.base), Path(aside) / SIGNATURE)
                yield s.path, (Path(aside) / SIGNATURE).read_bytes()
