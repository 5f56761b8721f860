"""A callback for the Trainer of transformers: every checkpoint that it saves is sealed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from ckpt_tools.guard.callbacks import Save


def seal_callback(**options: Any) -> Any:
    """A ``TrainerCallback``; ``options`` are those of ``ckpt_tools.seal``.

    Each rank seals the files that have its rank in their names, rank 0 also those of no rank. Before the next
    save, which may delete older ones, it waits for seals that are still being written.
    """
    from transformers import TrainerCallback

    class SealCallback(TrainerCallback):  # type: ignore[misc]  # it has no types here
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if control.should_save:
                _save(args, state).unseal()

        on_epoch_end = on_step_end

        def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            _save(args, state).seal()

        def __reduce__(self) -> Any:
            return partial(seal_callback, **options), ()

    def _save(args: Any, state: Any) -> Save:
        path = os.path.abspath(f"{args.output_dir}/checkpoint-{state.global_step}")
        return Save(path, args.process_index, args.world_size, options)

    return SealCallback()
