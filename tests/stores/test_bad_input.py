"""What a store can hold that no disk can, and what servers, indexes and users can say: each is read, refused
or named; nothing is left out in silence.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from places import FIXTURES
from stores.asking import NEWEST as FILE
from stores.asking import TREE, as_user, ask, variables
from stores.bucket import Bucket
from stores.proxy import Proxy
from stores.s3 import options
from stores.serving import Handler, Server, serving

SHARDED = FIXTURES / "layouts/hf-trainer/sharded/tree"


@pytest.fixture
def tree(gcs: Bucket, tmp_path: Path) -> Iterator[Bucket]:
    """A bucket with the tree at ``run``, and its user."""
    gcs.upload(TREE, "run")
    with as_user(tmp_path, gcs):
        yield gcs


NO_PATHS = ["run/../x", "run/..", "run/./x", "run/a//b", "run/a\nb", "run/a\x07b", "run/a\x7fb", "run//"]


@pytest.mark.parametrize("key", NO_PATHS)
def test_a_key_that_no_path_can_have_hides_nothing_in_silence(tree: Bucket, key: str) -> None:
    """What else the list has cannot be seen, so nothing is said of it, but which key it is."""
    tree.put(key, b"")
    for words in ("plan --allow none,missing", "verify", "ls"):
        said = ask(*words.split(), f"{tree.url}/run")
        assert said.code == 5, said.text
        assert repr(key) in said.error.replace("\n", " ") or repr(key) in said.text
        assert "rename or delete it" in said.text


NO_URLS = ["..", "run/..", "run/../run", "run//iter_0000030", "/run", "run/a\x07b"]


@pytest.mark.share(2)
@pytest.mark.parametrize("words", ["plan --allow none,missing", "verify", "ls", "latest --rank 0", "show"])
@pytest.mark.parametrize("key", NO_URLS)
def test_a_url_that_no_path_can_have_is_said_to_be_wrong(tree: Bucket, key: str, words: str) -> None:
    said = ask(*words.split(), f"{tree.url}/{key}")
    assert said.code == 5 and "correct the URL" in said.text, said.text


ODD = [
    "run/" + "k" * 1020,
    *(f"run/{name}" for name in ("ü é", "a%2Fb", "%", "a\\b", "x?y#z", "\u202e\u200b", " ")),
]


@pytest.mark.share(6)
@pytest.mark.parametrize("key", [*ODD, "run/", "run", "run/iter_0000030", "run/iter_0000030/", "run2/../x"])
def test_a_key_that_is_only_odd_changes_nothing(tree: Bucket, key: str) -> None:
    """Nor do the marks of directories, and what lies beside the directory."""
    tree.put(key, b"")
    said = ask("plan", f"{tree.url}/run", "--json")
    assert (said.code, said.json["resume_step"]) == (0, 30), said.text
    said = ask("verify", f"{tree.url}/run", "--json")
    assert (said.code, said.json["summary"]["ok"]) == (0, 6)


@pytest.mark.parametrize("name", ["ü é", "a%2Fb", "%41", "a\\b", "x?y#z", "a+b", "a&b=c;d", "'\"<>"])
def test_what_lies_below_an_odd_name_is_read(gcs: Bucket, name: str, tmp_path: Path) -> None:
    gcs.put(f"run/{name}/step_{FILE.replace('/', '-')}", (TREE / FILE).read_bytes())
    with as_user(tmp_path, gcs):
        said = ask("verify", f"{gcs.url}/run", "--level", "content", "--json")
        one = ask("verify", said.json["files"][0]["path"], "--level", "content", "--json")
    assert [(row["verdict"], row["level"]) for row in said.json["files"]] == [("ok", "content")]
    assert one.json["files"] == said.json["files"]


def test_a_key_that_is_a_file_and_a_directory_is_both(tree: Bucket) -> None:
    root, other = f"{tree.url}/run", f"run/{FILE}/other.pt"
    tree.put(other, (TREE / FILE).read_bytes()[:1000])
    verdicts = ask("verify", root, "--json").verdicts
    assert verdicts.pop(f"{FILE}/other.pt") == "broken"
    assert set(verdicts.values()) == {"ok"} and FILE in verdicts
    tree.delete(other)
    for key in (f"run/{FILE}/notes.txt", "run/iter_0000030"):
        tree.put(key, b"x")
    for words in ("plan", "latest --rank 0", "hook", "seal", "verify --level content"):
        assert ask(*words.split(), root).code == 0, words
    said = ask("plan", root, "--json")
    assert (said.code, said.json["resume_step"]) == (0, 30), said.text


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ["../../other/run/x", "s3://other/run/x", "/etc/passwd", "https://host/x"])
def test_an_index_that_names_what_lies_elsewhere(
    name: str, proxy: Proxy, through: Bucket, tmp_path: Path
) -> None:
    """It is said, and nobody is asked for it."""
    through.upload(SHARDED, "run")
    key = next(k for k in sorted(through.keys()) if k.endswith("model.safetensors.index.json"))
    index = json.loads((SHARDED / key.removeprefix("run/")).read_text())
    first = next(iter(index["weight_map"]))
    index["weight_map"][first] = name
    through.put(key, json.dumps(index).encode())
    with as_user(tmp_path, through):
        said = ask("verify", f"{through.url}/run", "--json")
    assert said.code == 1
    assert "path-escape" in said.codes
    bucket = through.url.removeprefix("s3://")
    assert [seen.path for seen in proxy.seen if not re.match(rf"/{bucket}(/run/|/?$)", seen.path)] == []


def test_what_is_not_there_is_told_from_what_is_empty(tree: Bucket) -> None:
    """Neither is an empty directory. Of a directory that is missing the parent is there, of a bucket without
    keys nobody can say that.
    """
    missing, other = ("--allow=none", "--allow=missing"), f"{tree.url}/other"
    asked = [(other, *missing[:1]), (other, *missing), (f"{tree.url}/run/{FILE}/below",)]
    assert [ask("plan", *words).code for words in asked] == [5, 0, 5]
    for key in list(tree.keys()):
        tree.delete(key)
    assert [ask("plan", tree.url, *words).code for words in (missing[:1], missing)] == [5, 5]


OF_RUN = ("{}/run/", "{}/run///", "GS://{bucket}/run", "{}/run/.", "{}/run/./", "{}/./run", "{}/./run/./.")


@pytest.mark.parametrize("spelled", [*OF_RUN, "{}", "{}/"])
def test_spellings_of_a_url(tree: Bucket, spelled: str) -> None:
    """Also with names that lead nowhere."""
    url = spelled.format(tree.url, bucket=tree.url.removeprefix("gs://"))
    said = ask("plan", url, "--json")
    assert (said.code, said.json["resume_step"]) == (0, 30), said.text
    assert said.json["root"] == (f"{tree.url}/run" if spelled in OF_RUN else tree.url)


def test_paths_of_this_machine_that_look_like_urls(tree: Bucket, tmp_path: Path) -> None:
    here = tmp_path / "s3:" / "bucket"
    here.parent.mkdir()
    os.symlink(TREE, here)
    for spelled in ("./s3:/bucket", "s3:/bucket", f"file://{here}", f"FILE://localhost{here}/", str(here)):
        said = ask("plan", spelled, "--json")
        assert (said.code, said.json["root"]) == (0, str(here)), said.text
    assert ask("plan", "foo://bar/run").code == 5  # no such kind of store: nothing was looked at


# ---- web servers


def test_a_file_of_a_web_server(http_server: Bucket, tmp_path: Path) -> None:
    http_server.put("model.pt", (TREE / FILE).read_bytes())
    with as_user(tmp_path, http_server):
        said = ask("verify", f"{http_server.url}/model.pt", "--level", "content", "--json")
        assert (said.code, said.json["files"][0]["verdict"]) == (0, "ok")
        assert ask("verify", f"{http_server.url}/nothing.pt").code == 5


def test_an_index_of_a_web_server_and_what_it_names(http_server: Bucket, tmp_path: Path) -> None:
    index = next(SHARDED.rglob("model.safetensors.index.json"))
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    http_server.put(index.name, index.read_bytes())
    for name in shards:
        http_server.put(name, (index.parent / name).read_bytes())
    url = f"{http_server.url}/{index.name}"
    with as_user(tmp_path, http_server):
        said = ask("verify", url, "--level", "content", "--json")
        assert (said.code, said.json["verdict"]) == (0, "ok"), said.text
        assert {row["path"].rpartition("/")[2] for row in said.json["files"]} >= {index.name}
        http_server.delete(shards[0])
        said = ask("verify", url, "--json")
        assert said.code == 1
        assert "missing-part" in said.codes


def test_a_web_server_without_ranges_says_nothing_of_a_file(
    http_without_ranges: Bucket, tmp_path: Path
) -> None:
    http_without_ranges.put("model.pt", (TREE / FILE).read_bytes())
    with as_user(tmp_path, http_without_ranges):
        said = ask("verify", f"{http_without_ranges.url}/model.pt", "--level", "content")
    assert said.code == 5
    assert "copy the file to a disk" in said.text


# ---- very many keys


class Pages(Handler):
    """A bucket of S3 with ``state`` keys below ``run/data/``, which it makes up as they are asked for."""

    def answer(self) -> None:
        query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
        if "list-type" not in query:
            self.reply(404, body=b"<Error><Code>NoSuchKey</Code></Error>")
            return
        after = query.get("continuation-token") or query.get("start-after") or "-1"
        first, last, more = self.page(int(after.rpartition("/")[2]) + 1)
        rows = "".join(
            f"<Contents><Key>run/data/{i:07}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{i}"</ETag><Size>7</Size></Contents>'
            for i in range(first, last)
        )
        cut = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        self.reply(200, body=f"<ListBucketResult>{cut}{more}{rows}</ListBucketResult>".encode())

    def page(self, first: int) -> tuple[int, int, str]:
        """The first number of a page, the one behind its last, and where the next one begins."""
        last = min(first + 1000, self.server.state)
        token = f"<NextContinuationToken>{last - 1}</NextContinuationToken>"
        return first, last, token * (last < self.server.state)


class OnlyTheFirstPage(Pages):
    """A server that knows ListObjects alone, and does not see what ListObjectsV2 asks for beyond it: that more
    would follow, it says in words of its own.
    """

    def page(self, first: int) -> tuple[int, int, str]:
        return 0, self.server.state, "<NextMarker>run/data/0000999</NextMarker>"


class FirstPageAgain(Pages):
    """A cache that takes all pages of a list for the first."""

    def page(self, first: int) -> tuple[int, int, str]:
        return super().page(first * 0)


def bucket_of(server: Server) -> Bucket:
    return Bucket("s3://bucket", server.endpoint, options(server.endpoint), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pages", "keys"), [(OnlyTheFirstPage, 1000), (OnlyTheFirstPage, 100), (FirstPageAgain, 2000)]
)
def test_the_first_page_of_a_list_is_not_taken_for_all_of_it(
    pages: type[Pages], keys: int, tmp_path: Path
) -> None:
    """Nor does it take for ever."""
    with serving(pages, keys) as server, as_user(tmp_path, bucket_of(server)):
        for words in ("ls", "verify", "plan --allow none", "prune --keep-last 1"):
            said = ask(*words.split(), "s3://bucket/run")
            assert said.code == 5, said.text
            assert "its list begins again in the middle" in said.text


@pytest.mark.parametrize(
    ("count", "mebibytes"),
    [(10_000, 90), pytest.param(1_000_000, 1500, marks=pytest.mark.exhaustive)],
)
def test_very_many_keys(count: int, mebibytes: int, tmp_path: Path) -> None:
    """One request a thousand, and some hundred bytes of memory each."""
    program = (
        "import re, sys; from ckpt_tools.cli import execute;"
        "from ckpt_tools.storage.stores import mounts;"
        "code = execute(['ls', 's3://bucket/run', '--json']);"
        "tree = mounts.tree_of('s3://bucket/run')[0];"
        "print(code, *tree.store.requests.elements(), file=sys.stderr);"
        # not ru_maxrss, which begins with that of whoever started it
        "print(re.search(r'VmHWM: *\\s*([0-9]+) kB', open('/proc/self/status').read())[1], file=sys.stderr)"
    )
    with serving(Pages, count) as server:
        own = {"HOME": str(tmp_path), "CKPT_NO_CACHE": "1"}
        env = {**os.environ, **variables(bucket_of(server)), **own}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, cwd=tmp_path
        )
    asked, peak = done.stderr.splitlines()[-2:]
    code, *requests = asked.split()
    assert code == "3", done.stderr  # none of them is a checkpoint
    assert requests.count("list") <= count // 1000 + 6
    assert len(requests) - requests.count("list") <= 1
    assert int(peak) < mebibytes << 10
