"""``ExceptionCheckpoint``: saves once when training raises, and says on restart which file each rank loads.

Source: mindx_elastic.torch_exception_module.exception_checkpoint (MindX DL 6.0 API reference, dlug_api_014).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.elastic import names
from ckpt_tools.elastic.guard import Guard
from ckpt_tools.elastic.replicas import Groups, Replicas, checked, in_world
from ckpt_tools.errors import UsageError
from ckpt_tools.settings import fault_file as _fault_file
from ckpt_tools.settings import parsers
from ckpt_tools.settings.declarations import trusted
from ckpt_tools.storage.trust import Trust, Untrusted

log = logging.getLogger("ckpt_tools.elastic")
Arguments = Sequence[Any] | Callable[[], Sequence[Any]]


class ExceptionCheckpoint(Guard):
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
        self.fault_ranks = _fault_ranks(fault_ranks, fault_file, env)
        in_world("the fault ranks", self.fault_ranks, self.world_size)
        in_world("rank", () if self.rank is None else (self.rank,), self.world_size)
        self.saved = False
        self.save_error: BaseException | None = None
        super().__init__(signals)
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
        """Set how to save and which ranks hold the same state; arguments that are left out go back to their
        defaults.

        ``save_func(*args)`` writes this rank's files; ``args`` may be a function that returns them when they
        are needed, so that the iteration is the current one. ``group_info``: groups of ranks with the same
        state (data-parallel groups); each rank is in one group at most. With ``partial_save`` only the first
        ``replicas`` ranks of each group save (and also a process that does not know its rank).
        ``use_distributed_optimizer``: every rank holds a part of the optimizer that no other rank has, so all
        ranks save and none can replace another. Raises UsageError.
        """
        groups: Groups | None = None if group_info is None else checked(group_info, self.world_size)
        replicas = _setting("replicas", replicas, parsers.whole(1))
        self._save_func, self._args = save_func, args if callable(args) else tuple(args)
        self._partial_save, self._group_info, self._replicas = partial_save, groups, replicas
        self._held = Replicas(
            self.fault_ranks, groups or (), replicas if partial_save else None, use_distributed_optimizer
        )

    # -- while training runs ---------------------------------------------------------------------------------

    def save(self) -> bool:
        """Call ``save_func(*args)`` if this rank is one that saves; True when it returned.

        If it raises, the error is logged and kept in ``save_error``, never raised, because the caller must
        see the original fault.
        """
        if self._save_func is None:
            log.warning("no dying-gasp save: set_config() named no save_func")
            return False
        if self.rank is not None and self.rank not in self._held.saving(self.rank):
            log.info(
                "no dying-gasp save by rank %d: ranks %s hold the same state and save it",
                self.rank,
                self._held.saving(self.rank),
            )
            return False
        try:
            self._save_func(*(self._args() if callable(self._args) else self._args))
        except BaseException as e:
            self.save_error = e
            log.exception("the dying-gasp save failed; the fault that led to it follows")
            return False
        self.saved = True
        return True

    # -- on restart ------------------------------------------------------------------------------------------

    def check_resumable_model(self) -> bool:
        """Whether the dying-gasp checkpoint holds the state of every rank: for each fault rank, a live rank
        of its group has saved.
        """
        return self._held.resumable

    def resume_iteration(self, iteration: int, save_interval: int) -> int:
        """``iteration`` when it can be resumed from, else the last multiple of ``save_interval`` at or below
        it; 0 means before any save.

        This is only the formula: ``ckpt plan`` says whether that checkpoint exists and is sound. Raises
        UsageError.
        """
        iteration = _setting("iteration", iteration, parsers.whole(0))
        save_interval = _setting("save_interval", save_interval, parsers.whole(1))
        return iteration if self.check_resumable_model() else iteration // save_interval * save_interval

    def source(self, rank: int, *, periodic: bool = False) -> int | None:
        """The rank whose file ``rank`` loads: itself unless it failed or did not save, else the first live
        one of its group that did; None when all are lost.

        A ``periodic`` checkpoint was saved by every rank before the fault: a live replica is preferred there,
        and the own file is always left.
        """
        return self._held.source(rank, periodic=periodic)

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
        """The (model, optimizer) files that ``rank`` (None: this one) loads, in the names of Ascend's
        Megatron-LM sample (docs/elastic.md).

        Both are ``…/model_optim_rng_<source(rank)>.pt``. With ``use_distributed_optimizer`` (None: as in
        ``set_config``) they are ``…/model_rng.pt`` and ``…_<data parallel rank>/optim.pt``, for which nobody
        stands in. ``tensor_rank`` may be left out when all ranks are one group.
        Raises UsageError, also when the dying-gasp checkpoint does not hold the rank's state.
        """
        me = self._known(rank)
        common = names.directory(
            checkpoints_path,
            iteration,
            release=release,
            staged=pipeline_parallel,
            tensor_rank=self._tensor_rank(tensor_rank),
            pipeline_rank=pipeline_rank,
        )
        sharded = self._held.sharded if use_distributed_optimizer is None else use_distributed_optimizer
        held = replace(self._held, sharded=sharded)
        whose = _source(held, me, periodic=periodic or release)  # no dying job wrote a release
        if not sharded:
            return names.of_rank(common, whose)
        return names.of_shard(common, held.place(me) if data_parallel_rank is None else data_parallel_rank)

    def _known(self, rank: int | None) -> int:
        """That rank, else this one. Raises UsageError."""
        rank = _setting("rank", self.rank if rank is None else rank, parsers.whole(0, parsers.MAX_RANK))
        if rank is None:
            raise UsageError(
                "the rank is not known, so its files cannot be named", "say rank=, or set CKPT_RANK"
            )
        in_world("rank", (rank,), self.world_size)
        return rank

    def _tensor_rank(self, given: int | None) -> int | None:
        """0 where all ranks hold the same state: there is no model parallelism."""
        one_group = self._group_info is not None and len(self._group_info) == 1
        return 0 if given is None and one_group else given

    def _get_fault_npus(self) -> list[str]:
        """The fault ranks as text, because that is how scripts compare them: ``str(args.rank) in
        exception_checkpoint._get_fault_npus()``.
        """
        return [str(rank) for rank in sorted(self.fault_ranks)]


def _fault_ranks(
    ranks: Iterable[int] | str | None, file: str | os.PathLike[str] | None, env: Mapping[str, str]
) -> frozenset[int]:
    """All that the list or the file names, each of them where it is given, else where its variable says."""
    listed = ranks if ranks is None or isinstance(ranks, str) or not isinstance(ranks, Iterable) else [*ranks]
    believed = trusted({}, env)
    in_file = partial(_fault_file.fault_file, trusted=believed)
    path = None if file is None else os.fspath(file)
    in_list = partial(_rank_set, trusted=believed)
    named = _setting("fault_ranks", listed, in_list, "CKPT_FAULT_RANKS", env) or frozenset()
    return named | (_setting("fault_file", path, in_file, "CKPT_FAULT_FILE", env) or frozenset())


def _source(held: Replicas, rank: int, *, periodic: bool) -> int:
    """The rank whose file that rank loads. Raises UsageError where none is left."""
    whose = held.source(rank, periodic=periodic)
    if whose is None:
        raise UsageError(
            f"no live rank saved the state of rank {rank}: the dying-gasp checkpoint cannot be resumed from",
            "load resume_iteration(iteration, save_interval), and say periodic=True for it",
        )
    return whose


def _rank_set(value: object, base: str, trusted: Trust) -> frozenset[int]:
    if isinstance(value, str):
        return _fault_file.fault_ranks(value, base, trusted)
    return _fault_file.ranks(value, "the list")


def _setting(
    name: str, value: object, parse: parsers.Parse, variable: str = "", env: Mapping[str, str] | None = None
) -> Any:
    """``value``, else that of ``variable``, checked by the parser that the command line uses; None without
    either. Raises UsageError.
    """
    raw, origin = (value, name) if value is not None else ((env or {}).get(variable) or None, variable)
    if raw is None:
        return None
    try:
        return parse(raw, "")
    except Untrusted as e:
        raise Untrusted(f"{origin}: {e}", e.hint) from e
    except ValueError as e:
        raise UsageError(f"{origin}: {e}", f"correct {origin}: docs/elastic.md says what is allowed") from e
