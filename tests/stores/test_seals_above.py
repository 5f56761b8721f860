"""The seals of one file, by its URL: those that lie in the directories above it count, and what keeps them
from being seen is said; where others may not list there is nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from stores.asking import NEWEST, TREE, as_user, ask
from stores.bucket import Bucket
from stores.faults import denied, unavailable
from stores.proxy import Proxy, Rule

FILE = f"team/run/{NEWEST}"
ELSEWHERE = r"^/[^/]+/?\?(?!.*prefix=team%2Frun)|^/[^/]+/(?!team/run/)[^?]"
"""Requests for what does not lie below team/run, which the policy of docs/stores.md does not allow."""


@pytest.fixture
def proxy(s3: Bucket, proxy_of: Callable[[Bucket], Proxy]) -> Proxy:
    s3.upload(TREE, "team/run")
    return proxy_of(s3)


def verify(s3: Bucket, proxy: Proxy, home: Path) -> tuple[int, set[str]]:
    with as_user(home, s3.through(proxy.endpoint)):
        said = ask("verify", f"{s3.url}/{FILE}", "--store-option", "max_retries=0", "--json")
    return said.code, said.codes if "files" in said.json else set()


@pytest.mark.parametrize("sealed", [False, True])
def test_what_may_not_be_listed_above_the_run_is_not_about_it(
    s3: Bucket, proxy: Proxy, tmp_path: Path, sealed: bool
) -> None:
    if sealed:
        s3.put("team/run/iter_0000030/.ckpt-seal.json", b"{}")
    proxy.add(Rule(denied(), path=ELSEWHERE))
    code, codes = verify(s3, proxy, tmp_path)
    assert (code, "seal-broken" in codes) == (0, sealed)
    assert [s.status for s in proxy.seen].count(403) == 1  # team/


@pytest.mark.share(3)
@pytest.mark.parametrize("nth", [2, 3, 4, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_what_cannot_be_listed_hides_no_seal(s3: Bucket, proxy: Proxy, tmp_path: Path, nth: int) -> None:
    """The first list is of the file itself, and two of the others are of what lies above its run."""
    s3.put("team/run/iter_0000030/.ckpt-seal.json", b"{}")
    for number in range(1001):
        s3.put(f"team/run/z/{number}", b"") if nth > 4 else None
    proxy.add(Rule(unavailable("0"), method="GET", path="list-type=2", first=nth))
    code, codes = verify(s3, proxy, tmp_path)
    lists = sum("list-type" in s.query for s in proxy.seen)
    assert code == 5 or (lists < nth and "seal-broken" in codes)


class HfUriError(ValueError):
    """What huggingface_hub 2 raises for what is no repository."""


class Hub(MemoryFileSystem):  # type: ignore[misc]
    """Lists repositories, but not what holds them, as the file system of huggingface_hub does."""

    protocol = "hub"
    error: type[Exception] = NotImplementedError

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if path.rstrip("/").endswith("//org"):
            raise self.error("there is nothing to list")
        return super().ls(path, detail, **more)


@pytest.mark.parametrize("error", [NotImplementedError, HfUriError])
def test_what_holds_the_repositories_of_a_hub_has_no_seals(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "error", error)
    fsspec.register_implementation("hub", Hub, clobber=True)
    Hub().pipe_file("hub://org/model/model.pt", (TREE / NEWEST).read_bytes())
    with as_user(tmp_path, Bucket("hub://org", "", {}, None)):  # type: ignore[arg-type]
        said = ask("verify", "hub://org/model/model.pt", "--json")
        assert (said.code, said.json["verdict"]) == (0, "ok"), said.text
        Hub().pipe_file(seal := "hub://org/model/.ckpt-seal.json", b"{}")
        assert "seal-broken" in ask("verify", "hub://org/model/model.pt", "--json").codes
        Hub().rm_file(seal)
