"""``python -m ckpt_tools`` is ``ckpt``."""

from ckpt_tools.cli import main

main()
