"""``python -P -m ckpt_tools`` is ``ckpt``."""

import os
import sys

# Without -P the first place for modules is the working directory, which may be anybody's; this package is
# found already.
if sys.path and sys.path[0] in ("", os.path.realpath(os.curdir)):
    del sys.path[0]

from ckpt_tools.cli import main

if __name__ == "__main__":  # workers of mpi4py.futures run this file under another name
    main()
