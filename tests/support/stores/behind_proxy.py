"""A user whose store is asked through a proxy, where tests have things go wrong; nothing waits before it asks
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from ckpt_tools.storage import attempts
from stores.asking import Said, as_user, ask
from stores.bucket import Bucket
from stores.proxy import Proxy


@dataclass(frozen=True)
class Behind:
    """A user, who lives in ``home``, and the bucket as it is asked for through the proxy."""

    bucket: Bucket
    proxy: Proxy
    home: Path

    def said(self, line: str) -> Said:
        """What a command answers; @ is the tree in the bucket."""
        return ask(*line.replace("@", f"{self.bucket.url}/run").split())


User = TypeVar("User", bound=Behind)


@contextmanager
def behind_proxy(
    bucket: Bucket, proxy_of: Callable[[Bucket], Proxy], home: Path, of: type[User] = Behind
) -> Iterator[User]:
    """What is refused is asked for twice at most."""
    proxy = proxy_of(bucket)
    through = bucket.through(proxy.endpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "pause", lambda _seconds: None)
        with as_user(home, through), pytest.MonkeyPatch.context() as options:
            options.setenv("CKPT_STORE_OPTION", "max_retries=1\ninit_backoff=1ms\nmax_backoff=1ms")
            yield of(through, proxy, home)
