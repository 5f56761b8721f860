"""URLs where paths may stand: what is called from where, what lies in what, and how they are written."""

from __future__ import annotations

import os

import pytest

from ckpt_tools.cache import inside as within
from ckpt_tools.errors import UsageError
from ckpt_tools.planning.topology import require_trusted
from ckpt_tools.reading.reader import place
from ckpt_tools.storage.trust import OURS, Untrusted
from ckpt_tools.storage.urls import absolute, common, inside, is_url, joined, split

BASES = ["/data/run", "s3://bucket/run", "gs://bucket/a/b", "memory://run", "s3://bucket"]
ELSEWHERE = [
    "", ".", "..", "../x", "a/../../x", "../../../../x", "/etc/passwd", "//bucket/x", "s3://other/x", "s3://bucket/run/x",
    "HTTPS://host/x", "file:///etc/passwd", "a\0b",
]  # fmt: skip


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_an_index_names_elsewhere_is_nowhere(base: str, name: str) -> None:
    assert inside(base, name) is None


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("name", "plain"), [("x", "x"), ("a/b", "a/b"), ("./a/../b", "b"), ("a//b", "a/b"), ("..x", "..x")]
)
def test_what_an_index_names_below_it_is_there(base: str, name: str, plain: str) -> None:
    assert inside(base, name) == f"{base}/{plain}"


@pytest.mark.parametrize(
    ("paths", "above"),
    [
        (["/a/b/c", "/a/b/d"], "/a/b"),
        (["s3://bucket/run/a", "s3://bucket/run/b"], "s3://bucket/run"),
        (["s3://bucket/run1", "s3://bucket/run2"], "s3://bucket"),
        (["s3://bucket/run", "s3://bucket/run"], "s3://bucket/run"),
        (["s3://one/run", "s3://two/run"], "/"),
        (["/a/b", "s3://bucket/run"], "/"),
    ],
)
def test_what_paths_have_in_common(paths: list[str], above: str) -> None:
    assert common(paths) == above


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("s3://bucket/run/", "s3://bucket/run"),
        ("S3://bucket/Run//", "s3://bucket/Run"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket", "s3://bucket"),
        ("file:///data/run/", "/data/run"),
        ("FILE:///data/a%20run", "/data/a run"),
        ("/data/run/", "/data/run"),
        ("/data/s3://bucket", "/data/s3:/bucket"),
    ],
)
def test_a_url_is_written_in_one_way(said: str, meant: str) -> None:
    assert absolute(said) == meant
    assert absolute(meant) == meant


@pytest.mark.parametrize(
    "path", ["s3:", "s3:/bucket", "./s3://bucket", "/s3://bucket", "1s3://bucket", "://x"]
)
def test_what_may_be_a_path_of_this_machine_is_one(path: str) -> None:
    assert not is_url(path)
    assert absolute(path) == os.path.abspath(path)


@pytest.mark.parametrize("url", ["s3://bucket/run/file", "s3://bucket", "memory://run/file", "az://c/a//b"])
def test_a_url_is_its_store_and_a_key(url: str) -> None:
    assert joined(*split(url)) == url


def test_a_tree_in_a_store_holds_nothing_of_this_machine() -> None:
    assert within("s3://bucket/run/verdicts", "s3://bucket/run")
    assert not within("s3://bucket/run2", "s3://bucket/run")
    assert not within(os.path.join(os.getcwd(), "s3:/bucket/run/x"), "s3://bucket/run")
    assert not within("s3://bucket/run", os.getcwd())


def test_files_that_steer_a_plan_come_from_no_other_store() -> None:
    require_trusted("s3://bucket/run/strategy", "s3://bucket/run", OURS)
    for root in ("s3://bucket/run", "/data/run"):
        with pytest.raises(Untrusted, match=r"s3://other/strategy lies outside") as e:
            require_trusted("s3://other/strategy", root, OURS)
        assert isinstance(e.value, UsageError)


def test_seals_of_a_store_lie_apart_below_its_name() -> None:
    assert place("/seals", "s3://bucket/run/.ckpt-seal.json") == "/seals/s3:/bucket/run/.ckpt-seal.json"
