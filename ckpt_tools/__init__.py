"""Discover, verify and plan the loading of training checkpoints: ``scan``, ``verify``, ``latest``, ``plan``,
``try_load``, and the values that they return.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than the rest of this
__version__ = "0.1.0"

if TYPE_CHECKING:
    from ckpt_tools import elastic, integrations
    from ckpt_tools import errors as errors
    from ckpt_tools.api import latest, plan, scan, verify
    from ckpt_tools.comparison.compare import diff
    from ckpt_tools.comparison.difference import (
        Change,
        Difference,
        FileDifference,
        MetadataDifference,
        TensorDifference,
        TensorSide,
    )
    from ckpt_tools.elastic.try_load import Attempt, Loaded, try_load
    from ckpt_tools.errors import (
        CannotLook,
        CkptError,
        LoadFailed,
        NoCheckpoint,
        NoneUsable,
        NotNewest,
        UsageError,
    )
    from ckpt_tools.guard import seal
    from ckpt_tools.model.answers import FileReport, Scan, Summary, Verification
    from ckpt_tools.model.checkpoint import Checkpoint
    from ckpt_tools.model.finding import Finding, Severity, Verdict
    from ckpt_tools.model.part import Kind, Part
    from ckpt_tools.model.plan import Choice, FileLoad, Known, LoadPlan, RankLoad, Rejected, Resume, Rollback
    from ckpt_tools.model.report import Guard, Level, Region, Report
    from ckpt_tools.model.seal import SealedOne, Sealing
    from ckpt_tools.model.selection import Selection, StoreOptions, Trust
    from ckpt_tools.model.tensor import Stats, Tensor

__all__ = [
    "Attempt",
    "CannotLook",
    "Change",
    "Checkpoint",
    "Choice",
    "CkptError",
    "Difference",
    "FileDifference",
    "FileLoad",
    "FileReport",
    "Finding",
    "Guard",
    "Kind",
    "Known",
    "Level",
    "LoadFailed",
    "LoadPlan",
    "Loaded",
    "MetadataDifference",
    "NoCheckpoint",
    "NoneUsable",
    "NotNewest",
    "Part",
    "RankLoad",
    "Region",
    "Rejected",
    "Report",
    "Resume",
    "Rollback",
    "Scan",
    "SealedOne",
    "Sealing",
    "Selection",
    "Severity",
    "Stats",
    "StoreOptions",
    "Summary",
    "Tensor",
    "TensorDifference",
    "TensorSide",
    "Trust",
    "UsageError",
    "Verdict",
    "Verification",
    "__version__",
    "diff",
    "elastic",
    "errors",
    "integrations",
    "latest",
    "plan",
    "scan",
    "seal",
    "try_load",
    "verify",
]

_HOMES = {
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
    "ckpt_tools.model.report": "Guard Level Region Report",
    "ckpt_tools.model.selection": "Selection StoreOptions Trust",
    "ckpt_tools.model.tensor": "Stats Tensor",
    "ckpt_tools.errors": "CannotLook CkptError LoadFailed NoCheckpoint NoneUsable NotNewest UsageError",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562): a training script pays next to nothing."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'ckpt_tools' has no attribute {name!r}")
    if name in ("elastic", "errors", "integrations"):
        return import_module(f"ckpt_tools.{name}")
    home = next(module for module, names in _HOMES.items() if name in names.split())
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
