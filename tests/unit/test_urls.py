"""URLs where paths may stand: what is called from where, what lies in what, and how they are written; a presigned one is
known by its name, and what signs it is nowhere else.
"""

from __future__ import annotations

import os

import pytest

from ckpt_tools.cache import is_inside as within
from ckpt_tools.errors import UsageError
from ckpt_tools.planning.topology import require_trusted
from ckpt_tools.reading.reader import place
from ckpt_tools.storage import signed
from ckpt_tools.storage.trust import OURS, Untrusted
from ckpt_tools.storage.urls import find_common, is_url, join, join_inside, split, to_absolute

BASES = ["/data/run", "s3://bucket/run", "gs://bucket/a/b", "memory://run", "s3://bucket"]
ELSEWHERE = [
    "", ".", "..", "../x", "a/../../x", "../../../../x", "/etc/passwd", "//bucket/x", "s3://other/x", "s3://bucket/run/x",
    "HTTPS://host/x", "file:///etc/passwd", "a\0b",
]  # fmt: skip


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_an_index_names_elsewhere_is_nowhere(base: str, name: str) -> None:
    assert join_inside(base, name) is None


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("name", "plain"), [("x", "x"), ("a/b", "a/b"), ("./a/../b", "b"), ("a//b", "a/b"), ("..x", "..x")]
)
def test_what_an_index_names_below_it_is_there(base: str, name: str, plain: str) -> None:
    assert join_inside(base, name) == f"{base}/{plain}"


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
    assert find_common(paths) == above


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
    assert to_absolute(said) == meant
    assert to_absolute(meant) == meant


@pytest.mark.parametrize(
    "path", ["s3:", "s3:/bucket", "./s3://bucket", "/s3://bucket", "1s3://bucket", "://x"]
)
def test_what_may_be_a_path_of_this_machine_is_one(path: str) -> None:
    assert not is_url(path)
    assert to_absolute(path) == os.path.abspath(path)


@pytest.mark.parametrize("url", ["s3://bucket/run/file", "s3://bucket", "memory://run/file", "az://c/a//b"])
def test_a_url_is_its_store_and_a_key(url: str) -> None:
    assert join(*split(url)) == url


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


# -- signatures


SIGNATURES = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F2026&X-Amz-Security-Token=t&X-Amz-Signature=s",
    "AWSAccessKeyId=AKIA&Signature=s%3D&Expires=1",
    "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential=me%40iam&X-Goog-Signature=s",
    "GoogleAccessId=me%40iam&Expires=1&Signature=s",
    "sv=2024-11-04&ss=b&srt=sco&sp=r&se=2027-01-01&st=2026-01-01&spr=https&sig=s%3D",
    "Policy=p&Signature=s&Key-Pair-Id=K",
)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "_queries", {})


@pytest.mark.parametrize("query", SIGNATURES)
@pytest.mark.parametrize("rest", ["", "&versionId=3"])
def test_the_name_has_nothing_of_the_query(query: str, rest: str) -> None:
    name = signed.strip_query(f"HTTPS://host/run/model.safetensors?{query}{rest}#part")
    assert name == "https://host/run/model.safetensors"
    assert signed.find_query(name) == f"{query}{rest}"
    assert signed.strip_query(name) == name and signed.find_query(name), (
        "a name is its own name, and keeps its query"
    )
    assert signed.asked(f"{query}{rest}") == ((("versionId", "3"),) if rest else ())


def test_a_renewed_signature_is_of_the_same_object() -> None:
    signed.strip_query(f"https://host/a?versionId=3&{SIGNATURES[0]}")
    name = signed.strip_query(f"https://host/a?{SIGNATURES[1]}&versionId=3")
    assert signed.find_query(name).startswith("AWSAccessKeyId")


@pytest.mark.parametrize(("a", "b"), [("id=1", "id=2"), ("", "id=1"), ("token=a", "token=b")])
def test_two_objects_never_have_one_name(a: str, b: str) -> None:
    signed.strip_query(f"https://host/a?sig=x&{a}")
    with pytest.raises(UsageError, match="differ") as e:
        signed.strip_query(f"https://host/a?sig=x&{b}")
    assert b == "" or b not in str(e.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@host/a", "http://hunter2@host/a?sig=x", "sftp://me:hunter2@host/a", "ftp://:hunter2@host",
        "sftp://me:pass/hunter2@host/a", "https://me:pass/hunter2@host/a", "az://container/a?sv=1&sig=hunter2",
        "s3://bucket/a?X-Amz-Signature=hunter2", "https://host/a%3Fsv=1&sig=hunter2",
        "https://host/a%3FX-Amz-Signature%3Dhunter2",
    ],
)  # fmt: skip
def test_what_belongs_elsewhere_is_refused_and_not_quoted(url: str) -> None:
    named, words = signed.strip_query, signed.words
    for call in (named, lambda u: words(["ls", u]), lambda u: words(["ls", f"--root={u}"])):
        with pytest.raises(UsageError) as e:
            call(url)
        assert "hunter2" not in f"{e.value}{e.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        "/a?sig=x", "a?sig=x", "s3://bucket/a?b", "sftp://me@host/a", "sftp://host:2222/a@b", "sftp://me@host:22/a@b",
        "s3://arn:aws:s3/a@b", "abfs://c@acc.dfs.core.windows.net/a", "-", "",
    ],
)  # fmt: skip
def test_other_texts_are_their_own_names_and_a_file_url_is_a_path(text: str) -> None:
    assert signed.strip_query(text) == text and not signed.find_query(text)
    assert signed.strip_query("file:///a/b%20c") == "/a/b c"


def test_of_a_command_line_what_follows_the_dashes_is_another_command() -> None:
    url = f"https://host/a?{SIGNATURES[0]}"
    assert signed.words(["run", url, "-q", f"--root={url}", "--", "train", url]) == [
        *("run", "https://host/a", "-q", "--root=https://host/a", "--", "train", url)
    ]
    assert signed.words(["ls", "--exclude=a=b://c", "x"]) == ["ls", "--exclude=a=b://c", "x"]
