"""What lies in a store is judged as the same files on a disk are: every tree of fixtures/layouts, whole and
damaged, is asked about on this machine and by its URL on a real server, and the two answers are the same JSON
but for the place.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import NAMED, TREES
from places import FIXTURES
from scripts import loaded
from stores.asking import as_user, ask
from stores.bucket import Bucket
from stores.fixtures import new_name
from stores.rclone import RcloneS3
from stores.s3 import S3Contents

HAS_MORE = {
    "etag": "which object it was",
    "version": "the same, where the bucket keeps versions",
    "fingerprint": "of a plan: with the ETag of each file",
    "bytes_verified": "bytes that no checksum of the file covers are read for that of the store",
}
"""Fields in which an answer about a store says more, or something else."""


make = loaded(FIXTURES / "make_answers.py")


@dataclass(frozen=True)
class Twins:
    """One tree in two places: ``local`` is its directory, ``url`` its name in the bucket."""

    bucket: Bucket
    local: Path
    home: Path  # of the user who asks

    @property
    def url(self) -> str:
        return f"{self.bucket.url}/{self.local.name}"

    def differences(self, words: Sequence[str]) -> list[str]:
        """The lines in which the answers to a command about ``@`` differ."""
        with as_user(self.home, self.bucket):
            answers = [self._facts(words, str(self.local)), self._facts(words, self.url)]
        if answers[0] == answers[1] or not any(p.is_file() for p in self.local.rglob("*")):
            return []
        return make.difference(" ".join(words), *answers).text.splitlines()

    def _facts(self, words: Sequence[str], root: str) -> str:
        said = ask(*(root + word[1:] if word.startswith("@") else word for word in words))
        answer = make.normalised(said.printed.replace(root, ""))
        text: str = make.facts(json.dumps({"exit_code": said.code, "answer": answer}))
        return json.dumps(json.loads(text, object_hook=_of_a_disk))


def _of_a_disk(fields: dict[str, Any]) -> dict[str, Any]:
    files = fields.get("files")
    if (
        isinstance(files, list) and files and "verdict" in files[0]
    ):  # what no layout recognises is in no order
        files.sort(key=lambda f: f["path"])
    if "ranks_present" in fields:  # to list saves no object is read
        del fields["state"]
    return {name: value for name, value in fields.items() if name not in HAS_MORE}


def as_uploaded(root: Path) -> None:
    """Take from a local tree what no store has: links (an upload stores what they lead to), directories below which
    nothing lies, modes and owners.
    """
    for path in [p for p in root.rglob("*") if p.is_symlink()]:
        to = path.resolve()
        path.unlink()
        if to.is_dir():
            shutil.copytree(to, path)
        elif to.exists():
            shutil.copyfile(to, path)
    for path in sorted((p for p in root.rglob("*") if p.is_dir()), reverse=True):
        path.chmod(0o755)
        if not any(path.iterdir()):
            path.rmdir()
    for path in (p for p in root.rglob("*") if p.is_file()):
        path.chmod(0o644)


def uploaded(bucket: Bucket, root: Path) -> None:
    """Upload a tree to a prefix of its own name, and give the local one the times that the store tells.
    rclone takes a file's time with it.
    """
    contents, files = bucket.contents, [p for p in sorted(root.rglob("*")) if p.is_file()]
    for path in files:
        key = f"{root.name}/{path.relative_to(root).as_posix()}"
        if isinstance(contents, S3Contents):
            told = {"Key": key, "Metadata": {"mtime": f"{path.stat().st_mtime_ns / 1e9:.3f}"}}
            contents.client.put_object(Bucket=contents.bucket, Body=path.read_bytes(), **told)
        else:
            bucket.put(key, path.read_bytes())
    rows = (row for page in bucket.store().list(root.name) for row in page)
    stored = {row["path"]: int(row["last_modified"].timestamp()) for row in rows}
    assert sorted(stored) == sorted(f"{root.name}/{p.relative_to(root).as_posix()}" for p in files)
    for key, second in stored.items():
        os.utime(root.parent / key, (second, second))


@pytest.fixture(scope="module")
def rclone_bucket(rclone_server: RcloneS3) -> Bucket:
    return rclone_server.bucket(new_name())


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asker")


def twins(bucket: Bucket, question: Any, tmp_path: Path, asker: Path) -> Twins:
    make.make_copy(question, tmp_path)
    copied = tmp_path / question.subject
    local = copied.rename(tmp_path / new_name())
    as_uploaded(local)
    uploaded(bucket, local)
    return Twins(bucket, local, asker)


def subject_of(case: Path) -> str:
    return str((case.parent / "tree").relative_to(FIXTURES))


ASKED = ("verify @ --level content --json", "plan @ --json", "ls @ --json", "latest @ --rank 0 --json")


@pytest.mark.share(96)
@pytest.mark.parametrize("case", TREES)
def test_a_tree_is_judged_alike(case: Path, rclone_bucket: Bucket, tmp_path: Path, asker: Path) -> None:
    two = twins(rclone_bucket, make.Question(subject_of(case), ()), tmp_path, asker)
    for words in ASKED:
        assert two.differences(words.split()) == []


def damages(case: Path) -> Iterator[dict[str, Any]]:
    """A loss, a flipped bit in one file and a cut in another; then both once more."""
    tree = case.parent / "tree"
    files = (p for p in tree.rglob("*") if p.is_file() and p.stat().st_size)
    names = sorted(p.relative_to(tree).as_posix() for p in files)
    chosen = random.Random(subject_of(case))
    yield {"remove": [chosen.choice(names)]}
    one, other = chosen.sample(names, 2) if len(names) > 1 else names * 2
    for flipped, cut in ((one, other), (other, one)):
        yield {"flip": {flipped: chosen.randrange((tree / flipped).stat().st_size)}}
        yield {"truncate": {cut: chosen.randrange((tree / cut).stat().st_size)}}


DAMAGED = [
    *(pytest.param(*row.values, range(i % 5, i % 5 + 1), id=row.id) for i, row in enumerate(TREES[::8])),
    *(pytest.param(*row.values, range(5), id=f"{row.id}-all", marks=pytest.mark.exhaustive) for row in TREES),
]
"""A quarter of the trees, one kind after the other; all of them with all their damage every night."""


@pytest.mark.share(12)
@pytest.mark.parametrize(("case", "kinds"), DAMAGED)
def test_damage_is_found_alike(
    case: Path, kinds: range, rclone_bucket: Bucket, tmp_path: Path, asker: Path
) -> None:
    for number, edits in enumerate(islice(damages(case), kinds.start, kinds.stop)):
        place = tmp_path / str(number)
        question = make.Question(subject_of(case), (), json.dumps(edits))
        two = twins(rclone_bucket, question, place, asker)
        for words in ("verify @ --level content --json", "plan @ --allow none --json"):
            assert two.differences(words.split()) == [], edits


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", [g for g in make.groups() if g.startswith("layouts/")])
def test_every_recorded_question_is_answered_alike(
    group: str, rclone_bucket: Bucket, tmp_path: Path, asker: Path
) -> None:
    """All that tests/laws/test_answers.py asks, with the damage of each case."""
    wrong, places, now = [], dict[tuple[str, str], Twins](), 0
    for question in make.questions(group):
        key = make.needs(question)
        if key not in places:
            now += 1
            places = {key: twins(rclone_bucket, question, tmp_path / str(now), asker)}
        if different := places[key].differences(question.command):
            wrong += [str(question), *different[:20]]
    assert wrong == []


OF_ALL = {"dcp-two", "deepspeed-zero2", "megatron-tp", "orbax-steps", "hf-trainer-sharded"}
SOME = [p for p in TREES if p.id in OF_ALL]


@pytest.mark.share(12)
@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("bucket", ["s3", "azurite", "gcs"], indirect=True)
def test_other_servers_say_the_same(bucket: Bucket, case: Path, tmp_path: Path, asker: Path) -> None:
    two = twins(bucket, make.Question(subject_of(case), ()), tmp_path, asker)
    for words in ASKED:
        assert two.differences(words.split()) == []


def test_a_difference_is_seen(rclone_bucket: Bucket, tmp_path: Path, asker: Path) -> None:
    case = NAMED["megatron/tp"]
    two = twins(rclone_bucket, make.Question(subject_of(case), ()), tmp_path, asker)
    largest = max((p for p in two.local.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    make.do_damage(two.local, {"flip": {str(largest.relative_to(two.local)): largest.stat().st_size // 2}})
    assert two.differences(ASKED[0].split()) != []
