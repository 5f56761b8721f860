"""What is secret is nowhere: not in what a command prints, nor in any file that it leaves, whether the store
answers well, badly, or with all that it was sent.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from places import FIXTURES
from stores.bucket import Bucket
from stores.serving import Handler, serving

from ckpt_tools import api, cli
from ckpt_tools.cli.app import COMMANDS
from ckpt_tools.job import command as job_command
from ckpt_tools.storage import signed, stalls
from ckpt_tools.storage.stores import object_store

TREE = FIXTURES / "layouts/megatron/tp/tree"
KEY, SESSION, SIGNATURE = "s3cr3tKeyOfTheUser", "s3ss1onTokenOfTheUser", "s1gnatureOfTheUrl"
SECRETS = (KEY, SESSION, SIGNATURE)
QUERY = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F20260101%2Fus-east-1%2Fs3%2Faws4_request"
    f"&X-Amz-Date=20260101T000000Z&X-Amz-Security-Token={SESSION}&X-Amz-Signature={SIGNATURE}"
)
WITHOUT = {"explain", "formats", "launchers", "completion"}
"""Commands that are asked about no tree."""


class Where(NamedTuple):
    """What the commands are asked about: a tree, a checkpoint in it, another one, and a file."""

    root: str
    one: str
    other: str
    file: str


Tell = tuple[Path, pytest.MonkeyPatch, pytest.CaptureFixture[str]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tell:
    """What somebody's desk is made of."""
    return tmp_path, monkeypatch, capfd


def lines(at: Where, out: Path) -> dict[str, list[str]]:
    """A command line of each command."""
    of_root = {name: [at.root] for name in ("", "ls", "repair", "undo")}
    plans = ["--plan-dir", f"{out}/plans"]
    return {
        **of_root, "verify": [at.root, "--json", "--progress", "json"], "report": [at.root, "-o", f"{out}/report.html"],
        "seal": [at.root, "--seal-dir", f"{out}/seals"], "latest": [at.root, "--rank", "0"], "plan": [at.root, "--json", *plans],
        "run": [at.root, *plans, "--explain", "-v", "--", "train"], "hook": [at.root, *plans, "--json"], "layouts": ["--check", at.root],
        "stage": [at.root, f"{out}/staged"], "show": [at.file], "diff": [at.one, at.other], "quarantine": [at.one],
        "prune": [at.root, "--keep", "1"], "pin": [at.one, "--dry-run"],
        "watch": [at.root, "--once", "--settle", "0s", "--state-dir", f"{out}/state"],
    }  # fmt: skip


# -- stores that answer badly --------------------------------------------------------------------------------


class Echo(Handler):
    """Answers with all that it was sent, as S3 does where a signature does not fit."""

    def answer(self) -> None:
        status, code = self.server.state
        sent = f"{self.command} {self.path}\n{self.headers}\n{self.body()!r}"
        body = f"<Error><Code>{code}</Code><StringToSign>{escape(sent)}</StringToSign></Error>"
        headers = {"Location": f"{self.path}&again=1", "X-Amz-Echo": self.path} if status == 301 else {}
        self.reply(status, headers, (body if code else sent).encode())


FAULTS: Mapping[str, tuple[int, str]] = {
    "denied": (403, "AccessDenied"), "forged": (403, "SignatureDoesNotMatch"), "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"), "no bucket": (404, "NoSuchBucket"), "nobody": (401, ""),
    "elsewhere": (301, "PermanentRedirect"), "overloaded": (503, "SlowDown"), "garbage": (200, ""),
}  # fmt: skip


@contextmanager
def world(name: str, bucket: Bucket) -> Iterator[str]:
    """The address of a store that answers so."""
    if name == "well":
        bucket.upload(TREE, "run")
        yield bucket.endpoint
    elif name == "nothing there":
        yield "http://127.0.0.1:1"
    else:
        with serving(Echo, FAULTS[name]) as server:
            yield server.endpoint


# -- who asks ------------------------------------------------------------------------------------------------


def environment(patch: pytest.MonkeyPatch, _home: Path) -> None:
    patch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    patch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    patch.setenv("AWS_SESSION_TOKEN", SESSION)


def profile(patch: pytest.MonkeyPatch, home: Path) -> None:
    keys = f"aws_access_key_id = AKIA\naws_secret_access_key = {KEY}\naws_session_token = {SESSION}\n"
    (home / ".aws/credentials").write_text(f"[work]\n{keys}")
    patch.setenv("AWS_PROFILE", "work")


def program(patch: pytest.MonkeyPatch, home: Path) -> None:
    """It fails, and says too much."""
    says = f"sh -c 'echo {KEY} {SESSION} >&2; exit 1'"
    (home / ".aws/config").write_text(f"[profile work]\ncredential_process = {says}\n")
    patch.setenv("AWS_PROFILE", "work")


def presigned(patch: pytest.MonkeyPatch, _home: Path) -> None:
    """Nobody: the URL says it."""


WHO: Mapping[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    f.__name__: f for f in (environment, profile, program, presigned)
}


class Desk:
    """Runs commands for somebody, and looks for what they leave."""

    def __init__(
        self, tmp: Path, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], who: str
    ) -> None:
        self.tmp, self.patch, self.capfd, self.who = tmp, patch, capfd, who
        for name in [n for n in os.environ if n.startswith(("AWS_", "CKPT_", "XDG_"))]:
            patch.delenv(name)
        self.home = tmp / "home"
        (self.home / ".aws").mkdir(parents=True)
        patch.setenv("HOME", str(self.home))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("CKPT_DEBUG", "1")
        patch.chdir(tmp)
        patch.setattr(stalls, "pause", lambda _: None)
        patch.setattr(job_command, "become", lambda *_: None)
        patch.setattr(signed, "_queries", {})
        WHO[who](patch, self.home)
        self.given = {path: path.read_bytes() for path in (self.home / ".aws").iterdir()}

    def where(self, endpoint: str, bucket: Bucket) -> Where:
        if self.who != "presigned":
            at = f"{bucket.url}/run/iter_00000"
            return Where(f"{bucket.url}/run", f"{at}10", f"{at}20", f"{at}20/mp_rank_00/model_optim_rng.pt")
        name = f"{endpoint}/{bucket.url.partition('://')[2]}/run/iter_00000"
        files = [f"{name}{step}/mp_rank_00/model_optim_rng.pt?{QUERY}" for step in (10, 20)]
        return Where(files[1], files[0], files[1], files[1])

    def run(self, endpoint: str, bucket: Bucket) -> dict[str, int]:
        """The exit code of each command; raises AssertionError for what one of them shows."""
        stores = (
            f'[store."s3://"]\nendpoint = "{endpoint}"\nmax_retries = 0\n[store."http://"]\nmax_retries = 0\n'
        )
        (self.tmp / "ckpt.toml").write_text(stores)
        codes = {}
        for name, words in lines(self.where(endpoint, bucket), self.tmp).items():
            self.capfd.readouterr()
            codes[name] = cli.execute([*([name] if name else []), *words])
            shown = "".join(self.capfd.readouterr())
            assert not found(shown.encode()), f"{name} shows {found(shown.encode())}: {shown}"
            for path in self.left():
                assert not found(path.read_bytes()), f"{name} leaves it in {path}"
        return codes

    def left(self) -> Iterator[Path]:
        """The files that were written, wherever."""
        for path in self.tmp.rglob("*"):
            if path.is_file() and path not in self.given:
                yield path


def found(data: bytes) -> list[str]:
    """The secrets in it, however it is written."""
    return [secret for secret in SECRETS if secret.lower().encode() in data.lower()]


# -- the law -------------------------------------------------------------------------------------------------


def test_every_command_is_asked() -> None:
    asked = set(lines(Where("", "", "", ""), Path()))
    assert asked - {""} == set(COMMANDS) - WITHOUT - {"hook install"}


@pytest.mark.share(3)
@pytest.mark.parametrize("who", ["environment", "profile", "presigned"])
def test_nothing_secret_is_shown_or_left_where_the_store_answers(who: str, told: Tell, s3: Bucket) -> None:
    desk = Desk(*told, who)
    with world("well", s3) as endpoint:
        codes = desk.run(endpoint, s3)
    more = [""] if who == "presigned" else ["plan", "latest", "report"]
    assert not any(codes[name] for name in ("ls", "verify", "show", "seal", *more)), codes
    assert codes["diff"] == 1
    assert 70 not in codes.values()
    assert len(list(desk.left())) > 3, "verdicts, decisions and a report are written"


@pytest.mark.share(24)
@pytest.mark.parametrize(
    ("who", "name"), list(product(("environment", "presigned", "profile"), ("nothing there", *FAULTS)))
)
def test_nothing_secret_is_shown_or_left_where_it_does_not(
    who: str, name: str, told: Tell, s3: Bucket
) -> None:
    desk = Desk(*told, who)
    with world(name, s3) as endpoint:
        codes = desk.run(endpoint, s3)
    good = {command: code for command, code in codes.items() if code in (0, 70)}
    assert good == {} or name == "garbage"


def test_a_program_that_says_too_much_is_not_quoted(told: Tell, s3: Bucket) -> None:
    desk = Desk(*told, "program")
    assert set(desk.run("http://127.0.0.1:1", s3).values()) <= {2, 5}


class Leaky(AbstractFileSystem):
    """A library that says in its errors all that it knows."""

    protocol = "leaky"
    error: Exception = OSError()
    cachable = False

    def ls(self, *_: Any, **__: Any) -> Any:
        raise self.error

    info = cat_file = ls


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, KEY),
        PermissionError(errno.EACCES, KEY),
        *(kind(KEY) for kind in (PermissionError, FileNotFoundError, ValueError, ImportError)),
        RuntimeError(f"GET https://host/?X-Amz-Signature={SIGNATURE}"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("early", [False, True])
def test_no_library_is_quoted(error: Exception, early: bool, told: Tell) -> None:
    desk = Desk(*told, "presigned")
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    desk.patch.setattr(Leaky, "error", error)
    if early:
        desk.patch.setattr(Leaky, "_strip_protocol", classmethod(lambda cls, _: cls().ls()))
    desk.who, at = "environment", Bucket("leaky://host", "", {}, None)  # type: ignore[arg-type]
    assert 70 not in desk.run("http://127.0.0.1:1", at).values()


@pytest.mark.share(2)
@pytest.mark.parametrize("who", ["environment", "presigned"])
def test_an_error_of_ours_shows_nothing_secret(who: str, told: Tell, s3: Bucket) -> None:
    """Nobody knows what is in its text; the traceback that CKPT_DEBUG asks for has it, too."""
    desk = Desk(*told, who)
    known = {"environment": (KEY, SESSION), "presigned": (SESSION, SIGNATURE)}[who]

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(f"GET http://host/a?{QUERY} with {' and '.join(known)}")

    for name in ("scan", "verify", "plan", "latest", "show"):
        desk.patch.setattr(api, name, fails)
    codes = desk.run("http://127.0.0.1:1", s3)
    assert {codes[name] for name in ("verify", "plan", "latest")} == {70}


def _quoting(e: Exception, url: str, *_: object) -> OSError:
    return OSError(5, str(e), url)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("who", "name", "instead"),
    [
        ("presigned", "well", (signed, "strip_query", lambda url: url)),
        ("presigned", "denied", (object_store, "to_os_error", _quoting)),
        ("environment", "forged", (object_store, "to_os_error", _quoting)),
        ("profile", "garbage", (object_store, "to_os_error", _quoting)),
    ],
)
def test_the_law_sees_it_where_one_of_these_is_missing(
    who: str, name: str, instead: tuple[object, str, object], told: Tell, s3: Bucket
) -> None:
    desk = Desk(*told, who)
    desk.patch.setattr(*instead)  # type: ignore[arg-type]
    with world(name, s3) as endpoint, pytest.raises(AssertionError, match=r"shows|leaves"):
        desk.run(endpoint, s3)
