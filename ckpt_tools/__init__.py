"""Discover, verify and plan the loading of training checkpoints: ``scan``, ``verify``, ``latest``, ``plan``,
``try_load``, and the values that they return.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than the rest of this
__version__ = "0.1.0"

if TYPE_CHECKING:
    from ckpt_tools import elastic as elastic
    from ckpt_tools import errors as errors
    from ckpt_tools import integrations as integrations
    from ckpt_tools.api import latest as latest
    from ckpt_tools.api import plan as plan
    from ckpt_tools.api import scan as scan
    from ckpt_tools.api import verify as verify
    from ckpt_tools.comparison.compare import diff as diff
    from ckpt_tools.comparison.difference import Change as Change
    from ckpt_tools.comparison.difference import Difference as Difference
    from ckpt_tools.comparison.difference import FileDifference as FileDifference
    from ckpt_tools.comparison.difference import MetadataDifference as MetadataDifference
    from ckpt_tools.comparison.difference import TensorDifference as TensorDifference
    from ckpt_tools.comparison.difference import TensorSide as TensorSide
    from ckpt_tools.elastic.try_load import Attempt as Attempt
    from ckpt_tools.elastic.try_load import Loaded as Loaded
    from ckpt_tools.elastic.try_load import try_load as try_load
    from ckpt_tools.errors import CannotLook as CannotLook
    from ckpt_tools.errors import CkptError as CkptError
    from ckpt_tools.errors import LoadFailed as LoadFailed
    from ckpt_tools.errors import NoCheckpoint as NoCheckpoint
    from ckpt_tools.errors import NoneUsable as NoneUsable
    from ckpt_tools.errors import NotNewest as NotNewest
    from ckpt_tools.errors import UsageError as UsageError
    from ckpt_tools.guard import seal as seal
    from ckpt_tools.model.answers import FileReport as FileReport
    from ckpt_tools.model.answers import Scan as Scan
    from ckpt_tools.model.answers import Summary as Summary
    from ckpt_tools.model.answers import Verification as Verification
    from ckpt_tools.model.checkpoint import Checkpoint as Checkpoint
    from ckpt_tools.model.finding import Finding as Finding
    from ckpt_tools.model.finding import Severity as Severity
    from ckpt_tools.model.finding import Verdict as Verdict
    from ckpt_tools.model.part import Kind as Kind
    from ckpt_tools.model.part import Part as Part
    from ckpt_tools.model.plan import Choice as Choice
    from ckpt_tools.model.plan import FileLoad as FileLoad
    from ckpt_tools.model.plan import Known as Known
    from ckpt_tools.model.plan import LoadPlan as LoadPlan
    from ckpt_tools.model.plan import RankLoad as RankLoad
    from ckpt_tools.model.plan import Rejected as Rejected
    from ckpt_tools.model.plan import Resume as Resume
    from ckpt_tools.model.plan import Rollback as Rollback
    from ckpt_tools.model.report import Guard as Guard
    from ckpt_tools.model.report import Level as Level
    from ckpt_tools.model.report import Region as Region
    from ckpt_tools.model.report import Report as Report
    from ckpt_tools.model.report import Stats as Stats
    from ckpt_tools.model.report import Tensor as Tensor
    from ckpt_tools.model.seal import SealedOne as SealedOne
    from ckpt_tools.model.seal import Sealing as Sealing
    from ckpt_tools.model.selection import Selection as Selection
    from ckpt_tools.model.selection import StoreOptions as StoreOptions
    from ckpt_tools.model.selection import Trust as Trust

_ROOMS = ("elastic", "errors", "integrations")
_HOME = {
    name: module
    for module, names in {
        "ckpt_tools.api": "latest plan scan verify",
        "ckpt_tools.comparison.compare": "diff",
        "ckpt_tools.comparison.difference": (
            "Change Difference FileDifference MetadataDifference TensorDifference TensorSide"
        ),
        "ckpt_tools.elastic.try_load": "Attempt Loaded try_load",
        "ckpt_tools.guard": "seal",
        "ckpt_tools.model.seal": "SealedOne Sealing",
        "ckpt_tools.model.answers": "FileReport Scan Summary Verification",
        "ckpt_tools.model.checkpoint": "Checkpoint",
        "ckpt_tools.model.finding": "Finding Severity Verdict",
        "ckpt_tools.model.part": "Kind Part",
        "ckpt_tools.model.plan": "Choice FileLoad Known LoadPlan RankLoad Rejected Resume Rollback",
        "ckpt_tools.model.report": "Guard Level Region Report Stats Tensor",
        "ckpt_tools.model.selection": "Selection StoreOptions Trust",
        "ckpt_tools.errors": "CannotLook CkptError LoadFailed NoCheckpoint NoneUsable NotNewest UsageError",
    }.items()
    for name in names.split()
}
__all__ = ["__version__", *_ROOMS, *_HOME]  # noqa: PLE0604 - all of them are strings


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562): a training script pays next to nothing."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'ckpt_tools' has no attribute {name!r}")
    if name in _ROOMS:
        return import_module(f"ckpt_tools.{name}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
