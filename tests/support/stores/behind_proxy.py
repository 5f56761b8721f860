"""A user whose store is asked through a proxy, where tests have things go wrong; nothing waits before it asks
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.storage import stalls
from stores.asking import TREE, Said, as_user, ask
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


def user_of(store: str, of: type[Behind]) -> Any:
    """A fixture: such a user of a store, or of the one that ``indirect`` names, which has the tree at ``run``. What is
    refused is asked for twice at most.
    """

    @pytest.fixture
    def user(
        request: pytest.FixtureRequest, proxy_of: Callable[[Bucket], Proxy], tmp_path: Path
    ) -> Iterator[Behind]:
        bucket: Bucket = request.getfixturevalue(getattr(request, "param", store))
        bucket.upload(TREE, "run")
        proxy = proxy_of(bucket)
        through = bucket.through(proxy.endpoint)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stalls, "pause", lambda _seconds: None)
            with as_user(tmp_path, through), pytest.MonkeyPatch.context() as options:
                options.setenv("CKPT_STORE_OPTION", "max_retries=1\ninit_backoff=1ms\nmax_backoff=1ms")
                yield of(through, proxy, tmp_path)

    return user
