"""``ExceptionCheckpoint``: saves once when training raises, and says on restart which file each rank loads.

Source: mindx_elastic.torch_exception_module.exception_checkpoint (MindX DL 6.0 API reference, dlug_api_014).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ckpt_tools import launchers
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import fault_file as faults
from ckpt_tools.settings import parsers
from ckpt_tools.settings.declarations import trusted
from ckpt_tools.storage.trust import Untrusted

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("ckpt_tools.elastic")
Arguments = Sequence[Any] | Callable[[], Sequence[Any]]
Groups = tuple[tuple[int, ...], ...]
P = ParamSpec("P")
R = TypeVar("R")


class Terminated(SystemExit):
    """A watched signal arrived. Unhandled it ends the process with 128 + the signal's number."""


def _require_in_world(what: str, ranks: Iterable[int], world_size: int | None) -> None:
    """Raise UsageError, about ``what``, if a rank is not below the world size; None allows all."""
    beyond = [r for r in ranks if world_size is not None and r >= world_size]
    if beyond:
        text = f"{what}: rank {min(beyond)} does not exist among {world_size} ranks"
        raise UsageError(text, "ranks count from 0: correct it, or world_size")


class ExceptionCheckpoint:
    """Saves once when training raises, and says on restart which file each rank loads.

    ``fault_ranks`` and ``fault_file`` name the ranks whose device failed (their union counts); if one is
    None, its variable counts, CKPT_FAULT_RANKS or CKPT_FAULT_FILE. ``rank`` is the rank of this process
    (None: CKPT_RANK, else the launcher's), ``world_size`` the number of ranks that saved (None:
    CKPT_WORLD_SIZE). ``signals``, such as (signal.SIGTERM,), are turned into an exception while training
    runs; by default none is. Raises UsageError for invalid values.
    """

    def __init__(
        self,
        *,
        fault_ranks: Iterable[int] | str | None = None,
        fault_file: str | os.PathLike[str] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        signals: Iterable[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if env is None else env
        self.world_size: int | None = _setting(
            "world_size", world_size, parsers.whole(1, parsers.MAX_RANK), "CKPT_WORLD_SIZE", env
        )
        self.rank: int | None = _setting("rank", rank, parsers.whole(0, parsers.MAX_RANK), "CKPT_RANK", env)
        if self.rank is None and (started := launchers.detect(env)):
            self.rank = started.rank.value if started.rank else None
        believed = trusted({}, env)
        if isinstance(fault_ranks, Iterable) and not isinstance(fault_ranks, str):
            fault_ranks = [*fault_ranks]
        path = None if fault_file is None else os.fspath(fault_file)
        in_list = partial(faults.fault_ranks, trusted=believed)
        in_file = partial(faults.fault_file, trusted=believed)
        named = _setting("fault_ranks", fault_ranks, in_list, "CKPT_FAULT_RANKS", env) or ()
        in_named_file = _setting("fault_file", path, in_file, "CKPT_FAULT_FILE", env) or ()
        self.fault_ranks: frozenset[int] = frozenset((*named, *in_named_file))
        _require_in_world("the fault ranks", self.fault_ranks, self.world_size)
        _require_in_world("rank", () if self.rank is None else (self.rank,), self.world_size)
        self.saved = False
        self.save_error: BaseException | None = None
        self._signals, self._before, self._depth = tuple(signals), dict[int, Any](), 0
        self.set_config()

    def set_config(
        self,
        save_func: Callable[..., object] | None = None,
        args: Arguments = (),
        partial_save: bool = False,
        group_info: Iterable[Iterable[int]] | None = None,
        replicas: int = 1,
        *,
        use_distributed_optimizer: bool = False,
    ) -> None:
        """Set how to save and which ranks hold the same state; arguments left out get their defaults again.

        ``save_func(*args)`` writes this rank's files; ``args`` may be a function that returns them when they
        are needed, so that the iteration is the current one. ``group_info``: groups of ranks with the same
        state (data-parallel groups); each rank is in one group at most. With ``partial_save`` only the first
        ``replicas`` ranks of each group save (and also a process that does not know its rank).
        ``use_distributed_optimizer``: every rank holds a part of the optimizer that no other rank has, so all
        ranks save and none can replace another. Raises UsageError.
        """
        groups: Groups | None = None
        if group_info is not None:
            try:
                groups = tuple(tuple(faults.ranks(group)) for group in group_info)
            except (TypeError, ValueError) as e:
                raise UsageError(f"group_info: {e}", "use lists of ranks such as [[0, 2], [1, 3]]") from e
            ranks = [r for group in groups for r in group]
            if not all(groups) or len(set(ranks)) != len(ranks):
                text = "group_info has an empty group, or a rank twice"
                raise UsageError(text, "each rank belongs to one group: [[0, 2], [1, 3]]")
            _require_in_world("group_info", ranks, self.world_size)
        replicas = _setting("replicas", replicas, parsers.whole(1))
        self._save_func, self._args = save_func, args if callable(args) else tuple(args)
        self._group_info, self._sharded = groups, use_distributed_optimizer
        self._group_of = {rank: group for group in groups or () for rank in group}
        self._writers = replicas if partial_save else None

    # -- while training runs ---------------------------------------------------------------------------------

    def save(self) -> bool:
        """Call ``save_func(*args)`` if this rank is one that saves; return True if the call returned.

        An error is logged and kept in ``save_error``, never raised: the caller must see the original fault.
        """
        if self._save_func is None:
            log.warning("no emergency save: set_config() named no save_func")
            return False
        savers = () if self.rank is None else self._find_savers(self.rank, self._sharded, False)
        if savers and self.rank not in savers:
            log.info(
                "no emergency save by rank %d: ranks %s hold the same state and save it", self.rank, savers
            )
            return False
        try:
            self._save_func(*(self._args() if callable(self._args) else self._args))
        except BaseException as e:
            self.save_error = e
            log.exception("the emergency save failed; the fault that led to it follows")
            return False
        self.saved = True
        return True

    def wrap(self, train: Callable[P, R]) -> Callable[P, R]:
        """Return ``train`` with a save when it raises; the exception goes on to the caller unchanged."""

        @wraps(train)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return train(*args, **kwargs)

        return run

    def __enter__(self) -> Self:
        if self._signals and not self._depth:
            if threading.current_thread() is not threading.main_thread():
                text = "signals can only be watched in the main thread"
                raise UsageError(text, "enter there, or leave out signals=")
            self._before = {s: signal.signal(s, _terminate) for s in self._signals}
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:  # the outer block meets the same exception: one fault, one save
            return
        finished = isinstance(error, SystemExit) and error.code in (None, 0)
        try:
            if error is not None and not finished and not isinstance(error, GeneratorExit):
                for s in self._before:  # a second SIGTERM must not tear the file that is being written
                    signal.signal(s, signal.SIG_IGN)
                self.save()
        finally:
            for s, handler in self._before.items():
                signal.signal(s, signal.SIG_DFL if handler is None else handler)
            self._before = {}

    # -- on restart ------------------------------------------------------------------------------------------

    def check_resumable_model(self) -> bool:
        """Return whether for each fault rank a live rank with the same state has saved."""
        return all(self.source(rank) is not None for rank in self.fault_ranks)

    def resume_iteration(self, iteration: int, save_interval: int) -> int:
        """Return ``iteration`` if it can be resumed from, else the last multiple of ``save_interval`` at or
        below it; 0 means before any save.

        It does not look for that checkpoint: ``ckpt plan`` does. Raises UsageError.
        """
        iteration = _setting("iteration", iteration, parsers.whole(0))
        save_interval = _setting("save_interval", save_interval, parsers.whole(1))
        return iteration if self.check_resumable_model() else iteration // save_interval * save_interval

    def source(self, rank: int, *, periodic: bool = False) -> int | None:
        """Return the rank whose file ``rank`` loads: itself unless it failed or did not save, else the first
        live rank of its group that did; None if all are lost.

        A ``periodic`` checkpoint was saved by every rank before the fault: there a live replica is preferred,
        and otherwise ``rank`` loads its own file.
        """
        return self._find_source(rank, self._sharded, periodic)

    def _find_savers(self, rank: int, sharded: bool, periodic: bool) -> tuple[int, ...]:
        """Return the ranks that save the state of ``rank``, which is alone if its optimizer is ``sharded``.

        Fixed beforehand: ranks that are dying cannot agree on it, and each may know of other faults.
        """
        group = (rank,) if sharded else self._group_of.get(rank, (rank,))
        return group if periodic else group[: self._writers]

    def _find_source(self, rank: int, sharded: bool, periodic: bool) -> int | None:
        live = [r for r in self._find_savers(rank, sharded, periodic) if r not in self.fault_ranks]
        if rank in live or (periodic and not live):
            return rank
        return live[0] if live else None

    def get_checkpoint_names(
        self,
        checkpoints_path: str | os.PathLike[str],
        iteration: int,
        use_distributed_optimizer: bool | None = None,
        release: bool = False,
        pipeline_parallel: bool | None = None,
        tensor_rank: int | None = None,
        pipeline_rank: int | None = None,
        *,
        rank: int | None = None,
        data_parallel_rank: int | None = None,
        periodic: bool = False,
    ) -> tuple[str, str]:
        """Return the (model, optimizer) files that ``rank`` (None: this one) loads, named as in Ascend's
        Megatron-LM sample (docs/elastic.md).

        Both are ``…/model_optim_rng_<source(rank)>.pt``. With ``use_distributed_optimizer`` (None: as in
        ``set_config``) they are ``…/model_rng.pt`` and ``…_<data parallel rank>/optim.pt``, for which no
        other rank stands in. ``tensor_rank`` may be left out when all ranks are one group. Raises UsageError,
        also when the dying-gasp checkpoint does not hold the rank's state.
        """
        me = _setting("rank", self.rank if rank is None else rank, parsers.whole(0, parsers.MAX_RANK))
        if me is None:
            text = "the rank is not known, so its files cannot be named"
            raise UsageError(text, "pass rank=, or set CKPT_RANK")
        _require_in_world("rank", (me,), self.world_size)
        if tensor_rank is None and self._group_info is not None and len(self._group_info) == 1:
            tensor_rank = 0  # all ranks hold the same state: there is no model parallelism
        directory = _name_directory(tensor_rank, pipeline_rank, pipeline_parallel)
        sharded = self._sharded if use_distributed_optimizer is None else use_distributed_optimizer
        # no dying job wrote a release
        source_rank = self._find_source(me, sharded, periodic or release)
        if source_rank is None:
            raise UsageError(
                f"no live rank saved the state of rank {me}: the emergency checkpoint cannot be resumed from",
                "load resume_iteration(iteration, save_interval), and pass periodic=True for it",
            )
        step = "release" if release else f"iter_{iteration:07d}"
        common = os.path.join(os.fspath(checkpoints_path), step, directory)
        if not sharded:
            name = os.path.join(common, f"model_optim_rng_{source_rank}.pt")
            return name, name
        shard = data_parallel_rank
        if shard is None and me in self._group_of:
            shard = sorted(self._group_of[me]).index(me)  # Megatron-LM counts ranks upwards
        if shard is None:
            text = "data_parallel_rank is not known"
            raise UsageError(text, "pass data_parallel_rank=, or group_info= in set_config()")
        return os.path.join(common, "model_rng.pt"), os.path.join(f"{common}_{shard:03d}", "optim.pt")

    def _get_fault_npus(self) -> list[str]:
        """Return the fault ranks as text, because that is how scripts compare them: ``str(args.rank) in
        exception_checkpoint._get_fault_npus()``.
        """
        return [str(rank) for rank in sorted(self.fault_ranks)]


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Raise Terminated for a signal, and ignore further ones."""
    signal.signal(number, signal.SIG_IGN)  # until the block is left
    raise Terminated(128 + number)


def _name_directory(tensor_rank: int | None, pipeline_rank: int | None, has_stages: bool | None) -> str:
    """Return the directory name of a model-parallel rank, such as ``mp_rank_01_003``; ``has_stages``: with
    pipeline stages (None: if ``pipeline_rank`` is given). Raises UsageError for an unknown rank. Source:
    Megatron-LM megatron/training/checkpointing.py get_checkpoint_name().
    """
    if tensor_rank is None:
        raise UsageError("tensor_rank is not known", "pass tensor_rank= (0 without tensor parallelism)")
    if has_stages and pipeline_rank is None:
        raise UsageError("pipeline_rank is not known", "pass pipeline_rank=, or pipeline_parallel=False")
    stage = "" if pipeline_rank is None or has_stages is False else f"_{pipeline_rank:03d}"
    return f"mp_rank_{tensor_rank:02d}{stage}"


def _setting(
    name: str, value: object, parse: parsers.Parse, variable: str = "", env: Mapping[str, str] | None = None
) -> Any:
    """Return ``value``, else the variable's, read by ``parse``; None if neither is set. Raises UsageError."""
    raw, origin = (value, name) if value is not None else ((env or {}).get(variable) or None, variable)
    if raw is None:
        return None
    try:
        return parse(raw, "")
    except Untrusted as e:
        raise Untrusted(f"{origin}: {e}", e.hint) from e
    except ValueError as e:
        raise UsageError(f"{origin}: {e}", f"correct {origin}: docs/elastic.md says what is allowed") from e
