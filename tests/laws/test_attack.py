"""The attacks of benchmarks/attack.py, each carried out against a process of ckpt: none succeeds. The quick
ones always, all with -m exhaustive.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from places import BENCHMARKS

sys.path.append(str(BENCHMARKS))  # last: its small_files is another than that of the tests
import attack
from _scene import Answer, Scene, scene

ROWS = [
    pytest.param(a, marks=[pytest.mark.exhaustive] if a.slow else [], id=f"{a.boundary}: {a.name}")
    for a in attack.ATTACKS
]


@pytest.mark.share(16)
@pytest.mark.parametrize("one", ROWS)
def test_the_attack_fails(one: attack.Attack) -> None:
    row = attack.carried_out(one)
    if one.limit:
        assert row.got, "what SECURITY.md calls a limit is none any more"
    elif one.root and os.geteuid() != 0:
        assert row.words[2] == "needs root"  # and says so, instead of passing for a defence
    else:
        assert not row.got, row.words


def test_an_attack_that_gets_what_it_wants_is_open() -> None:
    done = Answer(2, "", "ckpt: error: no, see --plan-dir")
    one = attack.Attack("owner", "x", lambda _: (done, ""), frozenset({2}), "--plan-dir")
    assert attack.judged(one, done, "") == ""
    assert attack.judged(one, done, "everything") == "everything"
    for answer in (
        *(Answer(code, "", done.err) for code in (0, 70, -9)),
        Answer(2, "", "ckpt: error: no"),
        Answer(2, "", done.err, memory=attack.HUGE + 1),
        Answer(2, "", done.err, hung=True),
    ):
        assert attack.judged(one, answer, ""), answer


def test_the_attacker_is_another_user() -> None:
    with scene() as place:
        if os.geteuid() != 0:
            with pytest.raises(attack.NeedsRootError), place.attacker():
                pass
            return
        with place.attacker():
            (place.shared / "file").touch()
        assert (place.shared / "file").stat().st_uid not in (os.geteuid(), os.getuid())
        (place.home / "private").touch(0o600)
        with place.attacker(), pytest.raises(PermissionError):
            (place.home / "private").read_bytes()
        assert os.geteuid() == 0


@pytest.mark.parametrize("end", ["", "import atexit; atexit.register(print)\n"], ids=["at once", "as usual"])
def test_memory_is_that_of_the_command_alone(end: str) -> None:
    ballast = bytearray(200 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    with scene() as at:
        codes = (f"{end}x = b'x' * ({size} << 20)\n" for size in (1, 128))
        small, large = (at.ckpt("explain", "truncated", code=code).memory for code in codes)
    assert 10 << 20 < small < 120 << 20 < 128 << 20 < large < 250 << 20


def test_obeying_shows(tmp_path: Path) -> None:
    """What the rows look at is really there when a decision is followed: the same values in a decision of
    ours are seen by the command.
    """
    with scene() as at:
        at.demo()
        options = ("--order", "step", "--plan-dir", at.home / "p", "--job", "j")
        answer = at.ckpt("run", at.runs, *options, "--", "env", env={"CKPT_X": "PWNED"})
        assert answer.code == 0 and "CKPT_X=PWNED" in answer.out
        assert Scene.decision(at)[1]["checkpoint"]["step"] == 10
