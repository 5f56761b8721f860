"""The loaders of torch and torch.distributed.checkpoint, as a job would call them; classes of frameworks that
are not installed are made up.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed.checkpoint as saver
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


class _Methods(type):
    """The class of made-up classes: what their files name of them is there (MMEngine's statistics)."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Absent(metaclass=_Methods):
    """An object of a framework that is not installed: only its place in the state matters here."""

    def __init__(self, *args: object, **more: object) -> None:
        self.args = args

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Modules:
    """What torch.load takes as ``pickle_module``: pickle, with classes made up where their module is not
    installed.
    """

    __name__ = "pickle"
    PickleError, UnpicklingError = pickle.PickleError, pickle.UnpicklingError

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except ImportError:
                return _Methods(name, (_Absent,), {})

    @classmethod
    def load(cls, file: Any, **more: Any) -> Any:
        return cls.Unpickler(file, **more).load()


def load_torch(path: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some fixtures were written by versions whose warnings these are
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Modules)


def dcp_home(path: str) -> str:
    """The directory of a file's checkpoint: the one that has .metadata, else its own."""
    homes = [str(above) for above in Path(path).parents if (above / ".metadata").exists()]
    return homes[0] if homes else os.path.dirname(path)


def stand_in_for_olmo_core() -> None:
    """Its .metadata names a class of its own, with the fields of torch's; the package itself is not there."""
    name = "olmo_core.distributed.checkpoint.filesystem"
    for package in ("olmo_core", "olmo_core.distributed", "olmo_core.distributed.checkpoint", name):
        sys.modules.setdefault(package, ModuleType(package))
    vars(sys.modules[name])["_StorageInfo"] = saver.filesystem._StorageInfo


stand_in_for_olmo_core()


def load_dcp(directory: str) -> dict[str, Any]:
    """Everything that the directory holds, as torch's own converter dcp_to_torch_save reads it."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader, planner = saver.FileSystemReader(directory), _EmptyStateDictLoadPlanner()
        _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return state


def tensors(state: object) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    below = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    for value in below:
        yield from tensors(value)
