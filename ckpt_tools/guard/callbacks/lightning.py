"""A callback for Lightning: every checkpoint that its trainer saves is sealed, file or sharded directory."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

from ckpt_tools.guard.callbacks import saving


def seal_callback(**options: Any) -> Any:
    """A Lightning ``Callback``; ``options`` are those of ``ckpt_tools.seal``.

    It wraps ``trainer.save_checkpoint``, which ``ModelCheckpoint`` calls too. URLs are not sealed.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class SealCallback(Callback):  # type: ignore[misc]  # it has no types here
        def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
            save = trainer.save_checkpoint

            @wraps(save)
            def sealed(filepath: Any, *args: Any, **kwargs: Any) -> None:
                if "://" in str(filepath):
                    save(filepath, *args, **kwargs)
                    return
                with saving(filepath, rank=trainer.global_rank, world_size=trainer.world_size, **options):
                    save(filepath, *args, **kwargs)  # when it returns, all ranks are done

            trainer.save_checkpoint = sealed

        def teardown(self, trainer: Any, *_: Any, **__: Any) -> None:
            del trainer.save_checkpoint

        def __reduce__(self) -> Any:
            return partial(seal_callback, **options), ()

    return SealCallback()
