"""Plug-ins: what installed packages add counts in every command; one that is broken is said, and changes no answer in
silence; and where none is installed nothing is imported or opened for it that can be spared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import own_plugins
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import executed
from large_runs import settle
from own_plugins import BOTH, FORMAT, LAYOUT, install, saved
from places import DOCS, FORMAT_FILES, ROOT
from run_helpers import flip, megatron

from ckpt_tools import Selection, errors, formats, job, verify
from ckpt_tools.launchers import detect, read_launch_line
from ckpt_tools.reading.scheduler import work
from ckpt_tools.settings import plugins

WEIGHTS = "save-20/rank-1.own"


@contextmanager
def reached(place: Path, **env: str) -> Iterator[None]:
    """A place of Python's path, in this process."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        patch.syspath_prepend(str(place))
        for name in not_for_them():
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        plugins.forget()
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                if name.startswith(("own_", "ckpt_acme")):
                    del sys.modules[name]
    plugins.switch(None)
    plugins.forget()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "site"
    place.mkdir()
    with reached(place):
        yield place


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def ckpt(*words: object) -> Done:
    plugins.forget()  # each command is a process of its own
    return Done(*executed([str(word) for word in words]))


def here(place: Path, *words: object, **env: str) -> Done:
    """As ``process`` below, in this process, where it is not about a new one: starting that is most of a command."""
    with reached(place, **env):
        return ckpt(*words)


def not_for_them() -> list[str]:
    return [name for name in os.environ if name.startswith(("CKPT_NO", "ACME"))]


def process(place: Path | str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, with the packages in a place."""
    clean = {name: os.environ[name] for name in os.environ.keys() - not_for_them()}
    return subprocess.run(
        [sys.executable, "-m", "ckpt_tools", *map(str, words)],
        env={**clean, "PYTHONPATH": f"{place}:{ROOT}", **env}, cwd="/", capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/plugin, installed into a directory of its own."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "plugin"
    subprocess.run(["cp", "-r", str(ROOT / "examples/plugin"), str(source)], check=True)
    line = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*line, str(target), str(source)], check=True, capture_output=True)
    return target


def test_the_example_is_planned_and_verified(example: Path, tmp_path: Path) -> None:
    run = own_plugins.acme(tmp_path / "run")
    done = process(example, "plan", run, "--json", "--no-cache")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["checkpoint"]["step"], answer["checkpoint"]["layout"]) == (0, 20, "acme")
    assert answer["resume"]["args"] == ["--resume", str(run / "save-20")]
    path = run / "save-20/part-1-of-2.acme"
    assert here(example, "latest", run, ACME_RANK="1", ACME_SIZE="2").stdout == f"{path}\n"
    flip(path, 25, 4)
    done = here(example, "verify", run, "--json", "--no-cache")
    found = {f["path"]: [x["code"] for x in f["findings"]] for f in json.loads(done.stdout)["files"]}
    assert (done.returncode, found[str(path)]) == (1, ["crc-mismatch"])
    done = here(example, "plan", run, "--json", "--no-cache", "--settle", "0")
    assert json.loads(done.stdout)["checkpoint"]["step"] == 10


@pytest.mark.parametrize("view", [[], ["--view"]])
def test_a_job_is_started_from_it(example: Path, tmp_path: Path, view: list[str]) -> None:
    """What is decided is read back by every process of the job, and looked at as any order is."""
    run, place = own_plugins.acme(tmp_path / "run"), tmp_path / "view"
    told = "import os, sys; print(os.environ['CKPT_PATH'], *sys.argv[1:])"
    start = [sys.executable, "-c", told, "{ckpt.args}"]
    more = [*view, place] if view else []
    done = process(example, "run", run, "--plan-dir", tmp_path / "plans", *more, "--", *start)
    assert done.returncode == 0, done.stderr
    path, flag, said = done.stdout.split()
    assert (path, flag) == (said, "--resume")
    assert sorted(p.name for p in Path(path).iterdir()) == ["DONE", "part-0-of-2.acme", "part-1-of-2.acme"]
    assert path.startswith(str(place)) is bool(view)


def test_the_example_answers_in_its_own_words(example: Path, tmp_path: Path) -> None:
    run = own_plugins.acme(tmp_path / "run\x1b")
    said = ("--format", "acmeboard")
    assert here(example, "verify", run, *said).stdout == f"ok: 6 files in {tmp_path}/run\\x1b\n"
    assert here(example, "plan", run, *said).stdout == f"step 20: {tmp_path}/run\\x1b/save-20\n"
    done = here(example, "plan", tmp_path / "none", *said)
    assert (done.returncode, done.stdout.partition(":")[0]) == (5, "cannot-look")
    done = here(example, "plan", run, *said, "--no-plugins")
    assert (done.returncode, done.stdout) == (2, "")
    assert "acmeboard" in here(example, "plan", run, "--format", "nonsense").stderr


def test_lists_name_the_package(example: Path) -> None:
    for listing, name in (("formats", "acme_tensors"), ("layouts", "acme"), ("launchers", "acmerun")):
        rows = json.loads(here(example, listing, "--json").stdout)[listing]
        assert {row["name"]: row["package"] for row in rows if row["package"]} == {name: "ckpt-acme 1.0.0"}
        assert "ckpt-acme 1.0.0" in here(example, listing).stdout


OUTPUT = """
from ckpt_tools.output.registry import Output
O = Output("own", "-", {"verification": "own_parts:nothing", "plan": lambda document, view: 1 / 0})
"""


def test_a_broken_output_is_said_where_it_is_asked_for(place: Path, tmp_path: Path) -> None:
    run = megatron(tmp_path / "run")
    install(place, {"outputs": {"own": "own_parts:O", "gone": "own_parts:P"}}, OUTPUT)
    for command, said in (("verify", "AttributeError"), ("plan", "ZeroDivisionError")):
        code, out, err = ckpt(command, run, "--format", "own")
        assert (code, out, said in err, "own-parts 1.0" in err) == (5, "", True, True), err
    assert ckpt("plan", run)[0] == 0
    code, _, err = ckpt("plan", run, "--format", "gone")
    assert (code, "the output plug-in 'gone' of the package own-parts 1.0 cannot be used" in err) == (2, True)
    code, out, err = ckpt("verify", run, "--strict", "--format", "markdown")
    assert (code, "own-parts" in out, err) == (0, False, "")  # it decides nothing


def test_without_plugins_the_example_is_not_there(example: Path, tmp_path: Path) -> None:
    run = own_plugins.acme(tmp_path / "run")
    for words, env in ((("--no-plugins",), {}), ((), {"CKPT_NO_PLUGINS": "1"})):
        done = here(example, "plan", run, *words, **env)
        assert (done.returncode, "left out by CKPT_NO_PLUGINS: ckpt-acme 1.0.0" in done.stderr) == (2, True)
    done = here(example, "seal", run, "--dry-run", CKPT_NO_PLUGINS="perhaps")  # it has no flag of its own
    assert done.returncode == 2 and "CKPT_NO_PLUGINS: 'perhaps' is neither" in done.stderr


def test_worker_processes_know_plugins(example: Path, tmp_path: Path) -> None:
    """Files are many and small: they are read by copies of the process."""
    run = own_plugins.acme(tmp_path / "run", tuple(range(1, 151)))
    done = process(example, "verify", run, "--json", "--no-cache", "-j", "2")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["summary"]["ok"]) == (0, 450)
    assert sum(f["format"] == "acme_tensors" and f["level"] == "content" for f in answer["files"]) == 300


FORMAT_ALONE = {"formats": {"own": "own_parts:FORMAT"}}
LAYOUT_ALONE = {"layouts": {"owned": "own_parts:LAYOUT"}}
BROKEN = {
    "no such package": ("import no_such_package\n", BOTH, "ModuleNotFoundError: No module named 'no_such_package'"),
    "an error of its own": (f"{FORMAT}{LAYOUT}\n1 / 0\n", BOTH, "ZeroDivisionError: division by zero"),
    "an exit": ("raise SystemExit(0)\n", BOTH, "SystemExit: 0"),
    "no such attribute": (FORMAT, BOTH, "AttributeError: module 'own_parts' has no attribute 'LAYOUT'"),
    "another kind": (f"CKPT_API = 2\n{FORMAT}", {"layouts": {"own": "own_parts:FORMAT"}}, "own_parts:FORMAT is a Format, no Layout"),
    "another name": (FORMAT, {"formats": {"other": "own_parts:FORMAT"}}, "it calls itself 'own', and its entry point says 'other'"),
    "another interface": (f"CKPT_API = 99\n{FORMAT}", FORMAT_ALONE, "it is written for version 99 of the interface"),
    "a layout of version 1": (LAYOUT.replace("CKPT_API = 2", ""), LAYOUT_ALONE, "it is written for version 1 of the interface"),
    "fields of version 1": (LAYOUT.replace('"-", ())', '"-", (), commit="model")'), LAYOUT_ALONE, "those of version 2 of the interface have other fields"),
    "an empty suffix": (FORMAT.replace('(".own",)', '("",)'), FORMAT_ALONE, "one is empty or no text"),
    "no expression": (FORMAT.replace('"-", (), "-")', '"-", (), "-", names="(")'), FORMAT_ALONE, "its names are not a regular expression"),
    "no check": (FORMAT.replace("{Level.STRUCTURE: check}", "{}"), FORMAT_ALONE, "no check"),
    "a wrong template": (LAYOUT.replace("{rank}", "{what}"), LAYOUT_ALONE, "one of its templates is wrong"),
    "no such group": ("", {"layout": {"owned": "own_parts:LAYOUT"}}, "there is no group 'layout'"),
    "a launcher": ("", {"launchers": {"l": "own_parts:L"}}, "the launcher plug-in 'l'"),
    "a manifest": ("", {"manifests": {"m": "own_parts:M"}}, "the manifest plug-in 'm'"),
}  # fmt: skip
"""What is wrong -> (the module, its entry points, what is said)."""


@pytest.mark.share(4)
@pytest.mark.parametrize("wrong", BROKEN)
def test_a_broken_one_is_in_every_answer(place: Path, tmp_path: Path, wrong: str) -> None:
    """With --strict and --no-plugins: test_schemas.py."""
    source, entry_points, said = BROKEN[wrong]
    run = megatron(tmp_path / "run")
    install(place, entry_points, source)
    for command in ("verify", "ls"):
        code, out, _ = ckpt(command, run, "--json")
        (found,) = [f for f in json.loads(out)["findings"] if f["code"] == "broken-plugin"][:1]
        assert (code, found["severity"]) == (0, "warning") and "own-parts 1.0" in found["message"]
        assert said in found["message"], found
    code, out, err = ckpt("plan", run, "--json")
    assert (code, "broken-plugin" in err) == (0, True), err
    assert any(said in w["message"] for w in json.loads(out)["warnings"])


@pytest.mark.parametrize("wrong", ["no such package", "a wrong template", "no such attribute"])
def test_what_only_it_knows_is_no_first_launch(place: Path, tmp_path: Path, wrong: str) -> None:
    """Neither a fresh start nor 'there is none'."""
    install(place, BROKEN[wrong][1], BROKEN[wrong][0])
    run = saved(tmp_path / "run")
    for words in (("plan", run), ("plan", run, "--allow=none"), ("latest", run, "--allow=none"), ("ls", run)):
        code, out, err = ckpt(*words)
        assert code == 5, (words, out, err)
    fresh = ("plan", run, "--allow=none", "--no-plugins")
    assert ckpt(*fresh)[0] == 2  # save-10 and save-20 are called as saves are
    assert ckpt(*fresh, "--allow=fresh")[0] == 0  # the user's own words


def test_a_layout_with_a_broken_format_never_leads_back(place: Path, tmp_path: Path) -> None:
    rows = {"formats": {"own": "own_formats:FORMAT"}, "layouts": {"owned": "own_parts:LAYOUT"}}
    install(place, rows, LAYOUT)
    code, _, err = ckpt("plan", saved(tmp_path / "run"))
    assert code == 5
    assert "format which nothing installed knows" in err
    assert ckpt("verify", tmp_path / "run")[0] == 5


def test_what_other_commands_do_beside_a_broken_one(place: Path, tmp_path: Path) -> None:
    """Nothing is removed, and a list says what it lacks."""
    install(place, *reversed(BROKEN["no such package"][:2]))
    code, _, err = ckpt("prune", megatron(tmp_path / "run"), "--keep", "1")
    assert (code, "so nothing is removed" in err) == (5, True)
    for listing in ("formats", "layouts"):
        code, out, err = ckpt(listing, "--json")
        assert (code, json.loads(out)["schema"]) == (0, f"ckpt-tools/{listing}/v1")
        assert "of the package own-parts 1.0 cannot be used" in err


def test_a_check_that_fails_leaves_its_file_unknown(place: Path, tmp_path: Path) -> None:
    """One file on which the plug-in trips: neither ok nor broken, and no reason to go back."""
    install(place, source=FORMAT.replace("yield from ()", "assert data[4] != 20\n    yield from ()") + LAYOUT)
    run = saved(tmp_path / "run")
    code, out, _ = ckpt("verify", run, "--json")
    said = {f["path"].removeprefix(f"{run}/"): f for f in json.loads(out)["files"]}
    assert (code, said["save-10/rank-0.own"]["verdict"], said[WEIGHTS]["verdict"]) == (5, "ok", "unknown")
    why = said[WEIGHTS]["findings"][0]["message"]
    assert "the format plug-in 'own' of the package own-parts 1.0 failed" in why
    assert ckpt("plan", run)[0] == 5


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (FORMAT.replace('lambda head: head.startswith(b"OWN1")', "lambda head: 1 / 0") + LAYOUT, "failed in 'magic'"),
        (FORMAT + LAYOUT.replace("Resume(checkpoint.path)", "checkpoint.nonsense"), "failed in 'resume'"),
        (FORMAT + LAYOUT.replace('"-", ())', '"-", (), tracker=Tracker("LAST", lambda _: 1 / 0))'), "failed in 'read'"),
        (FORMAT + LAYOUT.replace('"-", ())', '"-", (), check=lambda parts: (1 / 0 for _ in parts))'), "failed in 'check'"),
    ],
)  # fmt: skip
def test_a_failure_names_its_package(place: Path, tmp_path: Path, source: str, said: str) -> None:
    install(place, source=source)
    run = saved(tmp_path / "run")
    (run / "LAST").write_text("20")
    code, _, err = ckpt("plan", run)
    assert (code, said in err, "own-parts 1.0" in err) == (5, True, True) and "CKPT_NO_PLUGINS=1" in err, err


def test_what_it_prints_or_is_called_is_no_part_of_an_answer(place: Path, tmp_path: Path) -> None:
    install(place, source="print('hello')\n" + FORMAT + LAYOUT)
    code, out, err = ckpt("plan", saved(tmp_path / "run"), "--json")
    assert (code, json.loads(out)["checkpoint"]["step"], "hello" in err) == (0, 20, True)
    (place / "own_parts.py").write_text("import no_such_package")
    sys.modules.pop("own_parts")
    next(place.glob("*.dist-info/METADATA")).write_text("Name: own-parts\nVersion: 1.0\x1b[2J\n\n")
    _, _, err = ckpt("plan", tmp_path / "run")
    assert "\x1b" not in err and "1.0\\x1b[2J" in err


@pytest.mark.parametrize(
    ("listing", "name"),
    [("formats", "safetensors"), ("layouts", "megatron"), ("launchers", "slurm"), ("outputs", "json"), ("manifests", "dcp")],
)  # fmt: skip
def test_no_own_name_is_exchanged(place: Path, tmp_path: Path, listing: str, name: str) -> None:
    install(place, {listing: {name: "own_parts:P"}})
    asked = ("plan", "--format", "nonsense") if listing == "outputs" else ("latest",)
    code, _, err = ckpt(*asked, saved(tmp_path / "run"))
    said = f"the {listing[:-1]} plug-in '{name}' of the package own-parts 1.0 cannot have that name"
    assert (code, said in err) == (2, True), err


def test_one_name_twice_is_asked(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, and a layout of ckpt.toml."""
    install(place)
    monkeypatch.chdir(tmp_path)
    table = '[[layout]]\nname = "owned"\n[[layout.piece]]\ntemplate = "x-{step}.own"\n'
    (tmp_path / "ckpt.toml").write_text(table)
    code, _, err = ckpt("plan", saved(tmp_path / "run"))
    assert (code, "there are two layouts called 'owned'" in err) == (2, True)
    install(place, name="other-parts", module="own_other")
    code, _, err = ckpt("plan", tmp_path / "run")
    assert (code, "own-parts 1.0" in err, "other-parts 1.0" in err) == (2, True, True)


def entries(monkeypatch: pytest.MonkeyPatch, *places: Path | str) -> list[tuple[str, str, str, str]]:
    """Return what packages of some places add, with what cannot be used."""
    monkeypatch.setattr(sys, "path", list(map(str, places)))
    plugins.forget()
    found = plugins._read_entries()
    return [tuple(e) for e in found.entries] + [("broken", *b) for b in found.broken]


def test_where_packages_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is installed twice the first counts; relative places and those that are not there, never."""
    first, second = install(tmp_path / "a", version="2.0"), install(tmp_path / "b", version="1.0")
    assert {package for *_, package in entries(monkeypatch, first, second)} == {"own-parts 2.0"}
    monkeypatch.chdir(first)
    assert entries(monkeypatch, "", ".", tmp_path / "none", first / "own_parts.py") == []
    assert len(entries(monkeypatch, first)) == 2


@given(st.binary(max_size=200), st.binary(max_size=80))
def test_no_metadata_is_a_crash(
    tmp_path_factory: pytest.TempPathFactory, rows: bytes, headers: bytes
) -> None:
    """Whatever stands there: what begins like ours is an entry point of a package, or said to be broken."""
    place = install(tmp_path_factory.mktemp("site"))
    (metadata,) = place.glob("*.dist-info")
    (metadata / "entry_points.txt").write_bytes(b"[ckpt_tools.formats]\nown = own_parts:FORMAT\n" + rows)
    (metadata / "METADATA").write_bytes(headers)
    with pytest.MonkeyPatch.context() as patch:
        assert entries(patch, place)[0][0] in ("formats", "broken")
    plugins.forget()


def test_verdicts_of_others_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_CACHE_DIR", str(tmp_path / "cache"))
    run = saved(tmp_path / "run")
    first = install(tmp_path / "a")
    worse = FORMAT.replace("yield from ()", 'raise Damage("bad-header", "version 2 sees more")')
    second = install(tmp_path / "b", source=worse + LAYOUT, version="2.0")
    same = install(tmp_path / "c", source=worse + LAYOUT)
    settle()
    assert here(first, "plan", run).returncode == 0
    assert here(same, "plan", run).returncode == 0  # from the cache: the test can fail
    assert here(second, "plan", run).returncode == 4


def test_a_worker_with_other_plugins_is_another_version(place: Path) -> None:
    plain = plugins.tool_version()
    install(place)
    plugins.forget()
    ours = plugins.tool_version()
    assert (plain, ours) == (plain.partition(" ")[0], f"{plain} with own-parts 1.0")
    assert (work(plain, ())[0], work(ours, ())[2]) == (ours, "")
    plugins.switch(True)
    assert plugins.tool_version() == plain
    plugins.switch(None)
    (place / "own_parts.py").write_text("import no_such_package")
    sys.modules.pop("own_parts", None)
    plugins.forget()
    assert "but without the format plug-in 'own'" in plugins.tool_version()


def test_processes_with_other_plugins_do_not_share_a_decision(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, options = megatron(tmp_path / "run"), job.Options(worker=True, plan_dir=str(tmp_path / "plans"))

    def decide(rank: int) -> None:
        for name, value in {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}.items():
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
        job.decide(str(run), Selection(), options)

    decide(0)
    install(place)
    plugins.forget()
    with pytest.raises(errors.UsageError, match="with other options or plug-ins"):
        decide(1)


LAUNCHER = """
from ckpt_tools.launchers import Launcher, LaunchLine, Started
from ckpt_tools.launchers.launcher import known

def detect(env):
    return Started("own", known(env, "OWN_RANK", "own"), known(env, "OWN_SIZE", "own"))

L = Launcher("own", ("OWN_RANK",), detect, "-")
"""


def test_a_launcher_is_asked_before_those_of_ckpt(place: Path) -> None:
    env = {"OWN_RANK": "3", "OWN_SIZE": "8", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert (started := detect(env)) and (started.launcher, started.rank and started.rank.value) == ("bare", 0)
    install(place, {"launchers": {"own": "own_parts:L"}}, LAUNCHER)
    plugins.forget()
    assert (started := detect(env)) and (started.launcher, started.rank and started.rank.value) == ("own", 3)
    assert (started := detect({**env, "OWN_RANK": ""})) and started.launcher == "own"
    del env["OWN_RANK"]
    assert (started := detect(env)) and started.launcher == "bare"
    assert read_launch_line(["python", "train.py"], env) is None


MANIFEST = """
from ckpt_tools import Level
from ckpt_tools.formats import Claim, Format
from ckpt_tools.findings import finding

def sized(size):
    def check(source, anatomy):
        if source.size != size:
            yield finding("checksum-mismatch", f"the list says {size} bytes")
    return check

def check(source, anatomy):
    for line in source.read(0, source.size).decode().split("\\n")[1:]:
        name, _, size = line.partition(" ")
        anatomy.members[name] = Claim("sizes", sized(int(size)))
    yield from ()

M = Format("sizes", (".sizes",), lambda head: head.startswith(b"SIZES"), {Level.STRUCTURE: check}, "-", (), "-", index=True)
"""


def test_a_manifest_says_what_files_beside_it_held(place: Path, tmp_path: Path) -> None:
    install(place, {"manifests": {"sizes": "own_parts:M"}}, MANIFEST)
    plugins.forget()
    (run := tmp_path / "run").mkdir()
    good = next((FORMAT_FILES / "safetensors/good").glob("*.safetensors"))
    (run / "a.safetensors").write_bytes(good.read_bytes())
    for size, codes in ((good.stat().st_size, set()), (7, {"checksum-mismatch"})):
        (run / "all.sizes").write_text(f"SIZES\na.safetensors {size}")
        found = {f.code for file in verify(run).files for f in file.report.findings if f.severity}
        assert found == codes
    assert formats.package_of("sizes") == "own-parts 1.0"


def promised() -> dict[str, str]:
    """Name -> the module that docs/plugins.md promises it in."""
    page = (DOCS / "plugins.md").read_text()
    rows = re.findall(r"^\| `(ckpt_tools[\w.]*)` \| (.+?) \|", page, re.MULTILINE)
    return {name: module for module, names in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_promised_name_is_there_and_the_example_uses_no_other() -> None:
    names = promised()
    assert len(names) > 20
    for name, module in names.items():
        assert hasattr(import_module(module), name), (module, name)
    text = "\n".join(path.read_text() for path in (ROOT / "examples/plugin/src").rglob("*.py"))
    imported = re.findall(r"^from (ckpt_tools[\w.]*) import (.+)$", text, re.MULTILINE)
    used = {(module, name.strip()) for module, some in imported for name in some.split(",")}
    assert used and {(names.get(name), name) for _, name in used} == used


def test_the_page_says_which_version_of_the_interface_this_is() -> None:
    assert f"`CKPT_API = {plugins.API_VERSION}`" in (DOCS / "plugins.md").read_text()
    assert all(1 <= oldest <= plugins.API_VERSION for oldest in plugins.OLDEST_API.values())


def test_fields_of_the_promised_values_are_only_added() -> None:
    """What a plug-in of this version of the interface says must be understood for as long as that is."""
    from ckpt_tools.formats import Claim, Format
    from ckpt_tools.launchers import Launcher, Started
    from ckpt_tools.layouts.common.layout import Complete, Counting, Layout, Tracker
    from ckpt_tools.layouts.common.piece import Content, Piece, Readers
    from ckpt_tools.output.registry import Output

    promised = {
        Format: "name suffixes magic checks protects limits reference names state loader unasked index distinct misnamed "
                "index_of ours crosscheck beside final_mode hides_cuts names_its_save rank_groups",
        Claim: "format check whole optional follow joint fetch",
        Layout: "name title pieces resume reference limits steps check lacks lost tracker complete counting reshardable",
        Piece: "name role template formats kind readers required loaded unasked claim stage changes where content",
        Readers: "shared sharded single replicated_over",
        Content: "step proof",
        Tracker: "file read name write any_file always",
        Complete: "commit needs needs_any saved_with by_name",
        Counting: "first_epoch by_epoch",
        Launcher: "name variables detect reference read_line",
        Output: "name title renders needs extra",
        Started: "launcher rank world_size local_rank local_world_size node nodes job job_from restart max_restarts unclear hint skip",
    }  # fmt: skip
    for kind, names in promised.items():
        assert [n for n in kind.__match_args__ if n in names.split()] == names.split(), kind
