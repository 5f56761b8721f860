"""Settings come from flags, then variables, then one file outside the scanned tree; every mistake says what
would be right.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import declarations, parsers
from ckpt_tools.settings import resolve as config

ALL = dict.fromkeys(config.BY_KEY)


@pytest.fixture
def here(tmp_path):
    """A current directory in which ROOT ``tree`` is scanned."""
    (tmp_path / "job" / "tree").mkdir(parents=True)
    return tmp_path / "job"


def resolve(here, flags=None, env=None, **more):
    root = {"root": "tree"} if here.name == "job" else {}
    return config.resolve({**ALL, **root, **(flags or {})}, env=env or {}, cwd=str(here), **more)


def test_a_file_that_cannot_be_looked_for_is_not_taken_for_absent(here, monkeypatch):
    real = os.lstat

    def failing(path, *args, **kwargs):
        if str(path).endswith("ckpt.toml"):
            raise OSError(errno.EIO, "Input/output error", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "lstat", failing)
    with pytest.raises(CannotLook, match=r"ckpt\.toml: Input/output error"):
        resolve(here)


def test_precedence(here):
    (here / "ckpt.toml").write_text('order = "step"\nlevel = "load"\nworld-size = 4\n')
    found = resolve(here, {"order": "mtime"}, {"CKPT_ORDER": "step", "CKPT_LEVEL": "structure"})
    assert {key: (found.values[key], origin) for key, origin in found.origins.items()} == {
        "root": ("tree", "[ROOT]"),
        "order": ("mtime", "--order"),
        "level": (Level.STRUCTURE, "CKPT_LEVEL"),
        "world-size": (4, f"{here / 'ckpt.toml'}: world-size"),
    }
    (here / "ckpt.toml").write_text("strict = true\n")  # a variable can switch off what the file switches on
    assert resolve(here).selection().strict
    assert not resolve(here, env={"CKPT_STRICT": "0"}).selection().strict


def test_a_whole_selection(here):
    flags = {
        "rank": "1", "world-size": "8", "kind": "dying-gasp", "layout": "megatron", "run": "r", "prefix": "p", "max-step": "900", "order": "step",
        "max-attempts": "2", "fault-ranks": "1,3-5", "replica-groups": ["0,4;1,5", "optimizer=0,1"], "replicas": "all", "strategy-dir": "s", "tp": "2", "pp": "4",
        "rank-order": "tp-pp-dp", "save-interval": "100", "require": "epoch_num, optimizer", "settle": "2m", "level": "structure", "allow-none": True,
        "no-fallback": True, "skip-unreadable": True, "strict": True, "jobs": "3",
    }  # fmt: skip
    assert resolve(here, flags).selection() == Selection(
        rank=1, world_size=8, kind=Kind.DYING_GASP, layout="megatron", run="r", prefix="p", max_step=900, order="step", max_attempts=2,
        fault_ranks=frozenset({1, 3, 4, 5}), replica_groups={"": ((0, 4), (1, 5)), "optimizer": ((0, 1),)}, replicas_all=True, strategy_dir="s", sizes={"tp": 2, "pp": 4},
        rank_order="tp-pp-dp", save_interval=100, require=("epoch_num", "optimizer"), settle=120.0, level=Level.STRUCTURE, allow_none=True,
        no_fallback=True, skip_unreadable=True, strict=True, jobs=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "env", "values"),
    [
        ({"allow": ["none,missing"]}, {}, {"allow-none": True, "allow-missing": True}),
        ({"allow": ["missing"], "allow-none": True}, {}, {"allow-none": True, "allow-missing": True}),
        ({"allow": ["none"]}, {"CKPT_ALLOW_NONE": "0"}, {"allow-none": True}),
        ({}, {"CKPT_ALLOW": "none", "CKPT_ALLOW_MISSING": "1"}, {"allow-none": True, "allow-missing": True}),
        ({"parallel": ["tp=2,order=tp-dp"]}, {"CKPT_PP": "4"}, {"tp": 2, "rank-order": "tp-dp", "pp": 4}),
        ({"parallel": ["tp=2"]}, {"CKPT_PARALLEL": "pp=4"}, {"tp": 2}),
        ({}, {"CKPT_TRUST": "group\ndir=/a,b\ndir=/c"}, {"trust-group": True, "trust-dir": ("/a,b", "/c")}),
        ({"trust": ["owner=1,2"], "trust-owner": ["3"]}, {}, {"trust-owner": {1, 2, 3}}),
    ],
)
def test_words_are_settings_of_their_own(here, flags, env, values):
    found = resolve(here, {**dict.fromkeys(config.WORDS), **flags}, env)
    assert found.values == {"root": "tree"} | values
    assert {name for name, _ in found.going} == {
        o for o in found.origins.values() if o in ("CKPT_PP", "CKPT_ALLOW_MISSING")
    }


@pytest.mark.parametrize(
    ("flags", "env", "says"),
    [
        ({"allow": ["nome"]}, {}, "--allow: 'nome' is not one of"),
        ({"allow": ["none="]}, {}, "--allow: use none"),
        ({"allow": [""]}, {}, "--allow: '' is not one of"),
        ({"parallel": ["tp"]}, {}, "--parallel: use tp=VALUE"),
        ({"parallel": ["tp=x"]}, {}, "--parallel tp: 'x' is not a whole number"),
        ({"parallel": ["tp=2"], "tp": "3"}, {}, "contradict each other"),
        ({}, {"CKPT_ALLOW": "none", "CKPT_ALLOW_NONE": "0"}, "contradict each other"),
    ],
)
def test_words_that_mean_nothing_are_refused(here, flags, env, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        resolve(here, {**dict.fromkeys(config.WORDS), **flags}, env)


def test_every_selection_field_can_be_set():
    # --store-option and the tables [store."URL"], the tables [[layout]] of the file, --stage
    settable = {key.replace("-", "_") for key in config.BY_KEY} | {"stores", "layouts", "compare_only"}
    follow = {"sizes", "replicas_all", "cache", "world_from", "ranks", "trust"}
    assert set(Selection.__struct_fields__) <= settable | follow


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("rank", "x", "'x' is not a whole number"),
        ("rank", "-1", "-1 is below 0"),
        ("rank", "1_0", "not a whole number"),
        ("rank", "٣", "not a whole number"),
        ("rank", "9" * 18, "is above"),
        ("world-size", "0", "0 is below 1"),
        ("level", "deep", "'deep' is not one of presence, structure, content, values, load"),
        ("kind", "last", "'last' is not one of periodic, dying-gasp, release, best"),
        ("order", "name", "'name' is not one of mtime, step"),
        ("settle", "2x", "'2x' is not a duration"),
        ("settle", "1h30", "'1h30' is not a duration"),
        ("settle", "", ""),
        ("settle", "-5", "not a duration"),
        ("settle", "9" * 400 + "d", "not a duration"),
        ("fault-ranks", "1,,2", "'' is not a rank"),
        ("fault-ranks", "5-3", "'5-3' is not a rank or a range"),
        ("fault-ranks", "0-999999999", "rank 999999999 is above"),
        ("rank-order", "tp-xp", "is not an order of tp, cp, ep, dp, pp"),
        ("rank-order", "tp-tp", "is not an order"),
        ("run", "", "it is empty"),
        ("require", ",", "is not a list of names"),
        ("replica-groups", ["0,1;1,2"], "rank 1 occurs twice"),
        ("replica-groups", ["0,1", "2,3"], "given twice"),
        ("replica-groups", ["nosuchfile"], "cannot be read"),
        ("replica-groups", [";"], "names no group"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_the_flag(here, flag, value, says):
    with pytest.raises(UsageError) as e:
        resolve(here, {flag: value})
    assert str(e.value).startswith(f"--{flag}: ") and says in str(e.value)
    assert e.value.hint and e.value.exit_code == 2


ODD = {
    "long": "x" * 20_000, "list": "1," * 10_000 + "a", "words": "1 " * 10_000 + "a", "lines": "a\n" * 4000, "digits": "9" * 5000,
    "slashes": "/" * 20_000, "escape": "\x1b[31mred", "bytes": "\udcff", "blank": " ", "user": "~nobody/x",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_what_no_variable_should_hold_is_said_in_short(here, odd):
    """Whatever a script has put into any of them: it has a meaning, or an error that a log can hold."""
    said: list[UsageError] = []
    for variable in config.ENV:
        if variable.parse:
            try:
                resolve(here, {"root": None}, {variable.name: ODD[odd]})
            except UsageError as e:
                said.append(e)
    for error in said:
        assert error.hint and max(len(str(error)), len(error.hint)) < 5000, str(error)[:200]


def test_a_wrong_variable_is_named_where_the_command_reads_it(here):
    with pytest.raises(UsageError, match="CKPT_RANK: 'x' is not a whole number"):
        resolve(here, env={"CKPT_RANK": "x"})
    config.resolve({"root": None}, env={"CKPT_RANK": "x"}, cwd=str(here))
    unset = {"strict": False, "replica-groups": []}
    assert resolve(here, unset, {"CKPT_RANK": ""}).selection() == Selection()
    (here / "ckpt.toml").write_bytes(b'\xef\xbb\xbfjobs = 2\r\norder = "step"\r\n')  # as Windows writes it
    assert resolve(here).values["jobs"] == 2


CENTURY = 100 * 365 * 86400


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), (" 2m ", 120), ("1h30m", 5400), ("500ms", 0.5), ("1.5", 1.5), ("1d", 86400), (7, 7), ("0", 0),
     ("9" * 25, CENTURY), (1e300, CENTURY)],
)  # fmt: skip
def test_durations(value, seconds):
    assert parsers.duration(value) == seconds


def test_rank_outside_the_world(here):
    with pytest.raises(UsageError, match="--rank 8 does not exist among 8 ranks") as e:
        resolve(here, {"rank": "8"}, {"CKPT_WORLD_SIZE": "8"}).selection()
    assert "0 to 7" in e.value.hint


# -- replica groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "groups"),
    [
        ("0,4\n1 5 # second\n\n# end\n", {"": ((0, 4), (1, 5))}),
        ("0-1;2-3", {"": ((0, 1), (2, 3))}),
        ("[[0, 4], [1, 5]]", {"": ((0, 4), (1, 5))}),
        ('{"model": [[0, 4]], "optimizer": [[0]]}', {"model": ((0, 4),), "optimizer": ((0,),)}),
    ],
)
def test_replica_group_files(tmp_path, content, groups):
    file = tmp_path / "g=1.txt"
    file.write_text(content)
    assert parsers.replica_groups(str(file)) == groups
    assert parsers.replica_groups([str(file)]) == groups
    if set(groups) == {""}:
        assert parsers.replica_groups(f"rng={file}") == {"rng": groups[""]}
    else:
        with pytest.raises(ValueError, match="names the roles itself"):
            parsers.replica_groups(f"rng={file}")


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", "[[0, true]]", "[[0, -1]]", '{"a": 1}', "{", "0,x", "[[]]", "[[0.5]]"]
)
def test_bad_replica_group_files(tmp_path, content):
    file = tmp_path / "groups"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"\w"):
        parsers.replica_groups(str(file))


def test_all_is_a_group_and_no_role_of_a_file(here):
    found = resolve(here, {"replica-groups": ["all", "optimizer=0,1"]}).selection()
    assert found.replicas_all and found.replica_groups == {"optimizer": ((0, 1),)}
    (here / "groups.json").write_text('{"*": [[0]]}')
    with pytest.raises(UsageError, match="there is no role"):
        resolve(here, {"replica-groups": [str(here / "groups.json")]})


def test_replica_groups_in_one_variable_and_in_the_file(here):
    """There they start from its directory."""
    groups = {"model": ((0, 2), (1, 3)), "rng": ((0, 1),), "other": ((0,), (1,))}
    assert parsers.replica_groups("model=0,2;1,3\nrng=0,1\nother=0;1") == groups
    (here / "groups.txt").write_text("0,1\n")
    rows = 'model = [[0, 2], [1, 3]]\nrng = "groups.txt"\nother = "0;1"\n'
    (here / "ckpt.toml").write_text(f"[replica-groups]\n{rows}")
    (here / "deep").mkdir()
    found = config.resolve({**ALL, "root": "../tree"}, env={}, cwd=str(here / "deep"))
    assert found.values["replica-groups"] == groups


# -- the file ------------------------------------------------------------------------------------------------


def test_nearest_file_wins_and_none_is_merged(here):
    (here.parent / "ckpt.toml").write_text('order = "step"\n')
    (here / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.ckpt]\njobs = 2\n')
    found = resolve(here)
    assert found.file == str(here / "pyproject.toml")
    assert found.values == {"root": "tree", "jobs": 2}
    (here / "pyproject.toml").write_text('[project]\nname = "my-ckpt"\n')  # without our table: passed over
    assert resolve(here).values == {"root": "tree", "order": "step"}


def test_no_configuration_is_read_from_the_scanned_tree(here):
    bad = here / "tree" / "ckpt.toml"
    bad.write_text("this is not even TOML")
    (here / "ckpt.toml").write_text("jobs = 2\n")
    found = config.resolve({**ALL, "root": ".."}, env={}, cwd=str(here / "tree"))
    assert "jobs" not in found.values and len(found.notes) == 2  # both lie below ..
    assert str(bad) in found.notes[0]
    inside = config.resolve(ALL, env={}, cwd=str(here / "tree"))  # ROOT is the current directory
    assert (inside.values["jobs"], len(inside.notes)) == (2, 1)


def test_links_do_not_hide_the_scanned_tree_and_verified_paths_are_some_too(here):
    (here / "tree" / "ckpt.toml").write_text("jobs = 2\n")
    (here / "link").symlink_to(here / "tree")
    found = config.resolve({**ALL, "root": str(here / "link")}, env={}, cwd=str(here / "tree"))
    assert "jobs" not in found.values
    (here / "ckpt.toml").write_text("jobs = 2\n")
    for paths, values in (((str(here),), {}), (("tree",), {"jobs": 2})):
        assert config.resolve({"jobs": None}, paths, env={}, cwd=str(here)).values == values


def test_an_explicit_file_is_read_wherever_it_lies(here):
    (here / "tree" / "my.toml").write_text("jobs = 2\n")
    assert resolve(here, {"config": "tree/my.toml"}).values["jobs"] == 2
    assert resolve(here, env={"CKPT_CONFIG": str(here / "tree" / "my.toml")}).values["jobs"] == 2


def test_root_of_the_file_starts_from_its_directory_and_is_not_that(here):
    (here.parent / "ckpt.toml").write_text('root = "runs"\n')
    assert config.resolve(ALL, env={}, cwd=str(here)).root == str(here.parent / "runs")
    (here.parent / "ckpt.toml").write_text('root = "."\n')
    with pytest.raises(UsageError, match="contains the file itself"):
        config.resolve(ALL, env={}, cwd=str(here))


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        ("wrold-size = 4\n", "unknown key 'wrold-size'", "did you mean 'world-size'?"),
        ("world_size = 4\n", "unknown key 'world_size'", "did you mean 'world-size'?"),
        ("qqq = 4\n", "unknown key 'qqq'", "known keys: root"),
        ("rank = 4\n", "'rank' cannot be set in a configuration file", "--rank"),
        ("x = [\n", "is not valid TOML", "correct it"),
        ("strict = 3\n", "is neither true nor false", "--strict"),
        ("jobs = true\n", "True is not a whole number", "--jobs"),
    ],
)
def test_mistakes_in_the_file(here, content, says, hint):
    (here / "ckpt.toml").write_text(content)
    with pytest.raises(UsageError) as e:
        resolve(here)
    assert says in str(e.value) and str(here / "ckpt.toml") in str(e.value)
    assert hint in e.value.hint


NO_FILES = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "huge": lambda path: (path.touch(), os.truncate(path, (16 << 20) + 1)),
    "dangling": lambda path: path.symlink_to("none"),
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("made", NO_FILES)
def test_one_that_is_no_file_was_meant_to_be_one(here, made):
    """As a container's mount of a file that is not there leaves it, or a link whose volume is gone: what it
    was to say would not hold.
    """
    NO_FILES[made](here / "ckpt.toml")
    with pytest.raises(UsageError, match=r"ckpt\.toml' cannot be read") as e:
        resolve(here)
    assert "--config" in e.value.hint


def test_a_file_that_is_asked_for_must_be_there(here):
    with pytest.raises(UsageError, match=r"'.*none.toml' cannot be read"):
        resolve(here, {"config": "none.toml"})
    (here / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(UsageError, match=r"no table \[tool.ckpt\]"):
        resolve(here, {"config": "pyproject.toml"})


def test_every_variable_is_declared_once():
    names = [v.name for v in config.ENV]
    assert len(set(names)) == len(names)
    for v in config.ENV:
        assert v.meaning and v.since
        if v.flag.startswith("--"):
            assert v.name == f"CKPT_{v.key.upper().replace('-', '_')}"


@pytest.mark.parametrize("values", [["a=1"], ["/a b"], ["a=1", "b=it's"], ["dir=\\x", "n"]])
def test_what_is_said_instead_is_what_a_shell_reads(values):
    said = declarations.fill("CKPT_STORE_OPTION={}", values)
    done = subprocess.run(["bash", "-c", f'{said}; printf %s "$CKPT_STORE_OPTION"'], capture_output=True)
    assert done.stdout.decode() == "\n".join(values)
