"""A presigned URL is known by its name, and what signs it is nowhere else."""

from __future__ import annotations

import pytest

from ckpt_tools.errors import UsageError
from ckpt_tools.storage import signed

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
    name = signed.named(f"HTTPS://host/run/model.safetensors?{query}{rest}#part")
    assert name == "https://host/run/model.safetensors"
    assert signed.query_of(name) == f"{query}{rest}"
    assert signed.named(name) == name and signed.query_of(name), "a name is its own name, and keeps its query"
    assert signed.asked(f"{query}{rest}") == ((("versionId", "3"),) if rest else ())


def test_a_renewed_signature_is_of_the_same_object() -> None:
    signed.named(f"https://host/a?versionId=3&{SIGNATURES[0]}")
    name = signed.named(f"https://host/a?{SIGNATURES[1]}&versionId=3")
    assert signed.query_of(name).startswith("AWSAccessKeyId")


@pytest.mark.parametrize(("a", "b"), [("id=1", "id=2"), ("", "id=1"), ("token=a", "token=b")])
def test_two_objects_never_have_one_name(a: str, b: str) -> None:
    signed.named(f"https://host/a?sig=x&{a}")
    with pytest.raises(UsageError, match="differ") as e:
        signed.named(f"https://host/a?sig=x&{b}")
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
    named, words = signed.named, signed.words
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
    assert signed.named(text) == text and not signed.query_of(text)
    assert signed.named("file:///a/b%20c") == "/a/b c"


def test_of_a_command_line_what_follows_the_dashes_is_another_command() -> None:
    url = f"https://host/a?{SIGNATURES[0]}"
    assert signed.words(["run", url, "-q", f"--root={url}", "--", "train", url]) == [
        *("run", "https://host/a", "-q", "--root=https://host/a", "--", "train", url)
    ]
    assert signed.words(["ls", "--exclude=a=b://c", "x"]) == ["ls", "--exclude=a=b://c", "x"]
