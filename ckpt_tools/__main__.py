"""``python -m ckpt_tools`` is ``ckpt``."""

from ckpt_tools.cli import main

if __name__ == "__main__":  # workers of mpi4py.futures run this file under another name
    main()
