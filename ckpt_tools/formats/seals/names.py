"""What the files of seals are called, and which directory each is of."""

from __future__ import annotations

import os
import re

NAME = ".ckpt-seal.json"
FRAGMENTS = ".ckpt-seal.d"
"""The directory of what each rank has sealed."""
SIGNATURE = "model.sig"
"""What ``--sign-key`` writes beside a seal, for it and for model_signing."""
_FRAGMENT = re.compile(r"rank-\d{5,9}\.json")
_ASIDE = re.compile(rf"(\..*{re.escape(NAME[1:])}|{_FRAGMENT.pattern})\.\d+\.[0-9a-f]{{8}}\.tmp")


def beside(name: str) -> str:
    """The name of the seal of one file that lies among those of other checkpoints."""
    return f".{name}{NAME}"


def signature_beside(name: str) -> str:
    """The name of the signature of one file that lies among those of other checkpoints."""
    return f".{name}.{SIGNATURE}"


def is_apart(name: str) -> bool:
    """Whether a file is a seal or a signature, which no seal names."""
    return NAME in name or name == SIGNATURE or (name.startswith(".") and name.endswith(f".{SIGNATURE}"))


def of_one_file(name: str) -> str:
    """The file whose own seal has this name; "" where it is that of a directory."""
    return name[1 : -len(NAME)] if name.endswith(NAME) and len(name) > len(NAME) + 1 else ""


def fragment_name(rank: int) -> str:
    """The name of one rank's share, in FRAGMENTS."""
    return f"rank-{rank:05d}.json"


def is_fragment(name: str) -> bool:
    """Whether a file in FRAGMENTS has the name of a fragment; others are being written."""
    return _FRAGMENT.fullmatch(name) is not None


def is_aside(name: str) -> bool:
    """Whether a name is that of a seal that is being written, or whose writer died."""
    return _ASIDE.fullmatch(name) is not None


def aside(name: str) -> str:
    """A name of its own for a seal that is being written."""
    return f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def is_seal(path: str) -> bool:
    """Whether a path is that of a seal or a fragment."""
    if path.endswith(NAME):
        return True
    home, _, name = path.rpartition("/")
    return home.rpartition("/")[2] == FRAGMENTS and is_fragment(name)


def base_of(path: str) -> str:
    """The directory that the names in the seal at ``path`` are relative to."""
    home = os.path.dirname(path)
    return os.path.dirname(home) if os.path.basename(home) == FRAGMENTS else home
