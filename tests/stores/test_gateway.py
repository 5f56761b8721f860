"""Something between the store and here, such as a cache, has an object wrong and gives it wrongly each time, while
the checksum that the store keeps says that the object is good: nothing older is chosen for that, nothing is
sealed, staged or deleted, and no verdict is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from stores.asking import NEWEST, READERS, TREE, WRITERS
from stores.behind_proxy import Behind, behind_proxy
from stores.bucket import Bucket
from stores.faults import Corrupt
from stores.proxy import Proxy, Rule
from stores.s3 import s3_of

TRACKER = "latest_checkpointed_iteration.txt"
SIZE = (TREE / NEWEST).stat().st_size
PLACES = {
    "begin": (NEWEST, 0),
    "content": (NEWEST, SIZE // 2),
    "end": (NEWEST, SIZE - 10),
    "tracker": (TRACKER, 0),
}
"""Which byte of which object comes otherwise."""
OTHERS = ("plan", "latest", "stage", "verify", "plan of the tracker")
COMMANDS = {
    **{name: READERS[name] for name in OTHERS},
    "structure": "plan @ --level structure --json",
    "budget": "plan @ --budget 60 --json",
    **WRITERS,
}
KEEPS = {"crc": {}, "etag": {"ServerSideEncryption": "AES256"}}
"""What the store keeps: a CRC-32 of each object, or an ETag alone, and that it is an MD5."""
EVERYDAY = {
    ("crc", "content", "plan"),
    ("etag", "end", "structure"),
    ("etag", "tracker", "plan of the tracker"),
}
ROWS = [
    pytest.param(*row, marks=() if row in EVERYDAY else pytest.mark.slow)
    for row in product(KEEPS, PLACES, COMMANDS)
]


@pytest.fixture
def user(keeps: str, s3: Bucket, proxy_of: Callable[[Bucket], Proxy], tmp_path: Path) -> Iterator[Behind]:
    s3_of(s3).upload(TREE, "run", **KEEPS[keeps])
    with behind_proxy(s3, proxy_of, tmp_path) as behind:
        yield behind


@pytest.mark.share(32)
@pytest.mark.parametrize(("keeps", "place", "command"), ROWS)
def test_what_comes_is_not_what_the_store_holds(
    user: Behind, place: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, at = PLACES[place]
    user.proxy.add(Rule(Corrupt(at), "GET", f"/run/{name}"))
    if command == "prune":
        monkeypatch.setenv("CKPT_ORDER", "step")
    before = user.bucket.keys()
    said = user.said(COMMANDS[command])
    as_usual = said.code == 0 and (command in ("verify", "seal", "prune") or said.json["resume_step"] == 30)
    assert said.code == 5 or as_usual, said.text
    assert "broken" not in (f["verdict"] for f in said.json.get("files", ()) if "verdict" in f), said.text
    assert set(before) <= set(user.bucket.keys())
    sealed = [key for key in user.bucket.keys() if key.startswith("run/iter_0000030/.ckpt-seal")]  # noqa: SIM118
    assert not sealed or place == "tracker"
