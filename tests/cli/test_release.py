"""What is released, .ci/build and what it puts into the sdist and the wheel; and what others call from CI: the steps of
action.yml, run as GitHub's runner runs them, and the pre-commit hook.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm
import yaml
from places import FIXTURES, FORMAT_FILES, ROOT
from run_helpers import ckpt

if sys.version_info >= (3, 11):
    from tomllib import loads as toml_loads
else:
    from tomli import loads as toml_loads

BUILD = ROOT / ".ci/build"
MOST = {"wheel": 2_500_000, "sdist": 5_000_000}
"""Bytes. Of the wheel the report's charting library is a quarter."""


class Built(NamedTuple):
    """What one run of .ci/build has left."""

    sdist: Path
    wheel: Path

    @property
    def names(self) -> list[str]:
        """Of the files in the wheel."""
        return zipfile.ZipFile(self.wheel).namelist()


def run_build(script: Path, out: Path, /, umask: int = -1, **more: str) -> subprocess.CompletedProcess[str]:
    """In the environment of the tests, which has build and hatchling."""
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": here, **more}
    return subprocess.run([script, out], env=env, cwd="/", umask=umask, capture_output=True, text=True)


def built(script: Path, out: Path, /, umask: int = -1, **more: str) -> Built:
    done = run_build(script, out, umask, **more)
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built(BUILD, tmp_path_factory.mktemp("dist"))


@pytest.mark.exhaustive
def test_two_builds_have_the_same_bytes(release: Built, tmp_path: Path) -> None:
    """Whoever builds, wherever, and at whatever time of day."""
    again = built(BUILD, tmp_path / "out", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", TMPDIR=str(tmp_path))
    for one, other in zip(release, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_wheel_holds_the_package_and_nothing_else(release: Built) -> None:
    assert release.wheel.stat().st_size < MOST["wheel"]
    tops = {re.sub(r"-[^/]+\.(dist-info|data)", r".\1", n.split("/")[0]) for n in release.names}
    assert tops == {"ckpt_tools", "ckpt_tools.data", "ckpt_tools.dist-info"}
    files = (p for p in (ROOT / "ckpt_tools").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    tracked = {str(p.relative_to(ROOT)) for p in files}
    assert {name for name in release.names if name.startswith("ckpt_tools/")} == tracked
    shared = {n.partition(".data/data/share/")[2] for n in release.names if ".data/" in n}
    assert shared == {f"man/man1/{page.name}" for page in (ROOT / "docs/man").iterdir()}


def test_what_the_package_is_called_is_a_command(release: Built) -> None:
    """As ``uvx ckpt-tools`` and ``pipx run ckpt-tools`` ask for it."""
    (name,) = (n for n in release.names if n.endswith("/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(zipfile.ZipFile(release.wheel).read(name).decode())
    assert points["console_scripts"]["ckpt"] == points["console_scripts"]["ckpt-tools"]


def test_the_sdist_holds_what_its_own_tests_need_and_no_more(release: Built) -> None:
    assert release.sdist.stat().st_size < MOST["sdist"]
    with tarfile.open(release.sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
        assert {(m.uid, m.gid, m.mode & 0o022) for m in files} == {(0, 0, 0)}
    wanted = {"LICENSE", "CHANGELOG.md", "docs/design.md", "tests/conftest.py"}
    assert wanted | {"fixtures/demo/latest_checkpointed_iteration.txt"} <= names
    of_ours = re.compile(r"benchmarks|\.ci|fixtures/(writers|answers|fuzz)|tests/(laws|cluster)")
    assert not [*filter(of_ours.match, names)]


def test_shellcheck_has_nothing_to_say() -> None:
    words = [Path(sys.executable).with_name("shellcheck"), *sorted((ROOT / ".ci").iterdir())]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]


def test_actions_are_those_that_were_looked_at() -> None:
    """Whoever may move a tag could put other code behind it."""
    files = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "action.yml"]
    used = re.findall("uses: (.*)", "\n".join(f.read_text() for f in files))
    assert len(used) > 20
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
    assert len(set(used)) == len({one.partition("@")[0] for one in used}), "one version of each"


def needed(job: str) -> set[str]:
    """The jobs before this one."""
    first = WORKFLOW[job].get("needs", [])
    names = {first} if isinstance(first, str) else set(first)
    return names.union(*(needed(name) for name in names))


def test_nothing_is_published_that_was_not_tried_and_attested() -> None:
    assert needed("publish") == {"build", "again", "wheel", "attest"}
    tagged = {job for job in WORKFLOW if "ref_type == 'tag'" in WORKFLOW[job].get("if", "")}
    assert tagged == {"attest", "publish", "page"}
    assert WORKFLOW["publish"]["permissions"] == {"id-token": "write"}  # trusted: there is no password
    assert "secrets." not in str(WORKFLOW)


def test_every_python_that_the_package_names_is_tried() -> None:
    metadata = toml_loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {word.rpartition(" ")[2] for word in metadata["classifiers"] if re.search(r":: 3\.\d+$", word)}
    assert set(WORKFLOW["wheel"]["strategy"]["matrix"]["python"]) == named | {"3.14"}
    nox = (ROOT / "noxfile.py").read_text()
    assert set(re.findall(r'"(3\.\d+)"', nox.partition("PYTHONS = ")[2].partition("\n")[0])) == named


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    metadata = toml_loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {name.partition(";")[0].replace(">=", " >=") for name in metadata["dependencies"]}
    theirs = {name.removeprefix("python-") for name in recipe["requirements"]["run"][1:]}
    assert theirs == ours
    assert f">={recipe['context']['python_min']}" == metadata["requires-python"]
    points = {f"{name} = {where}" for name, where in metadata["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == points


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """A repository that has little more than a version, and git's commands for it."""
    home = tmp_path / "repository"
    for name in (".ci/build", "pyproject.toml", "README.md", "LICENSE", "ckpt_tools/__init__.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, home / name)
    shutil.copytree(ROOT / "docs/man", home / "docs/man")  # the wheel has them below share/
    (home / "CHANGELOG.md").write_text("# Changelog\n\n## 7.2.0 – 2031-02-03\n\n## 0.0.9 – 2020-01-02\n")
    git(home, "init", "-q")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "All")
    return home


def git(home: Path, *words: str) -> None:
    named = "-c user.name=A -c user.email=a@b -c commit.gpgsign=false -c tag.gpgsign=false"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "-C", home, *named.split(), *words], env=env, check=True)


@pytest.mark.exhaustive
def test_the_tag_says_the_version(tagged: Path, tmp_path: Path) -> None:
    git(tagged, "tag", "v7.2.0")
    (tagged / "ckpt_tools/stray.py").write_text("")
    found = built(tagged / ".ci/build", tmp_path / "out")
    assert found.wheel.name == "ckpt_tools-7.2.0-py3-none-any.whl"
    assert "ckpt_tools/stray.py" not in found.names
    source = zipfile.ZipFile(found.wheel).read("ckpt_tools/__init__.py").decode()
    assert '\n__version__ = "7.2.0"\n' in source
    assert "7.2.0" not in (tagged / "ckpt_tools/__init__.py").read_text()  # the checkout is left alone


@pytest.mark.exhaustive
def test_the_time_of_the_commit_is_that_of_the_files(tagged: Path, tmp_path: Path) -> None:
    """Not that of the build; and another one gives other bytes, so that equal ones mean something."""
    times = ("1700000000", "1800000000")
    found = [built(tagged / ".ci/build", tmp_path / at, SOURCE_DATE_EPOCH=at) for at in times]
    years = [{info.date_time[0] for info in zipfile.ZipFile(one.wheel).infolist()} for one in found]
    assert years == [{2023}, {2027}]
    assert found[0].sdist.read_bytes() != found[1].sdist.read_bytes()


@pytest.mark.parametrize(
    ("tag", "said"),
    [("v7.3.0", "## 7.3.0 – YYYY-MM-DD"), ("v0.0.9", "not higher"), ("v7.nothing", "7.nothing")],
)
def test_a_tag_that_is_no_release_is_refused(tagged: Path, tmp_path: Path, tag: str, said: str) -> None:
    git(tagged, "tag", tag)
    done = run_build(tagged / ".ci/build", tmp_path / "out")
    assert done.returncode == 1 and said in done.stderr
    assert not (tmp_path / "out").exists()


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
DEMO = FIXTURES / "demo"


@dataclass
class Job:
    """A runner's files and variables, and what the steps of the action left in them."""

    home: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    def value(self, text: str) -> str:
        """What the runner puts in place of expressions."""
        usual = {name: told.get("default", "") for name, told in ACTION["inputs"].items()}
        known = {f"inputs.{name}": given for name, given in {**usual, **self.inputs}.items()}
        known |= {f"steps.{s}.outputs.{name}": v for s, of in self.outputs.items() for name, v in of.items()}
        known["github.action_path"] = str(ROOT)
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: known[m[1]], text)

    def run(self, name: str) -> int:
        """One step of the action; its exit code."""
        step: dict[str, Any] = next(s for s in ACTION["runs"]["steps"] if s["name"] == name)
        script, said, work = (self.home / name for name in ("step.sh", "said", "work"))
        script.write_text(step["run"])
        said.write_text("")
        work.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "RUNNER_TEMP": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"), "GITHUB_OUTPUT": str(said),
            "GITHUB_STEP_SUMMARY": str(self.home / "summary.md"),
            **{key: self.value(text) for key, text in step["env"].items()},
        }  # fmt: skip
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
        done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True)
        self.log += done.stdout
        found = self.outputs.setdefault(step.get("id", ""), {})
        found.update(line.split("=", 1) for line in said.read_text().splitlines())
        return done.returncode


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """With what the first step would have installed."""
    return Job(tmp_path, {"path": str(DEMO)}, {"install": {"ckpt": f"{warm.commands()}/ckpt"}})


def test_no_input_is_ever_part_of_a_script() -> None:
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    assert len(scripts) == 3
    assert not [script for script in scripts if "${{" in script]


def test_damage_is_shown_three_times_and_fails_at_the_end(job: Job) -> None:
    assert job.run("Verify") == 0  # the upload comes first
    assert job.outputs["verify"] == {"exit-code": "1", "sarif": "ckpt.sarif"}
    assert job.log.count("::error file=") == 3
    assert "### ckpt verify: broken" in (job.home / "summary.md").read_text()
    assert '"2.1.0"' in (job.home / "work/ckpt.sarif").read_text()
    assert job.run("Result") == 1


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("path", "fails", "code"),
    [("gone", "never", 5), ("empty", "never", 3), ("gone", "error", 5), ("sound", "warning", 0), (str(DEMO), "never", 0)],
)  # fmt: skip
def test_what_is_no_damage_keeps_its_exit_code_and_never_lets_damage_pass(
    job: Job, path: str, fails: str, code: int
) -> None:
    work = job.home / "work"
    (work / "empty").mkdir(parents=True)
    (work / "sound").mkdir()
    shutil.copy(DEMO / "iter_0000010/mp_rank_00/model_optim_rng_0.pt", work / "sound")
    job.inputs |= {"path": path, "fail-on": fails}
    assert job.run("Verify") == 0
    assert job.outputs["verify"]["exit-code"] == ("1" if path == str(DEMO) else str(code))
    assert job.run("Result") == code


def test_words_come_whole(job: Job) -> None:
    """Lines are words, whatever is in them: blanks, quotes, commands, the beginning of a flag."""
    work = job.home / "work"
    names = ["two words", "$(touch ran)", "a'b\"c", "-q", "`touch ran`;touch ran"]
    for name in names:
        (work / name).mkdir(parents=True)
        shutil.copy(DEMO / "iter_0000020/mp_rank_01/model_optim_rng_1.pt", work / name)
    job.inputs |= {"path": "\r\n".join(["", *names, ""]), "args": "--max-duration\n1h"}
    assert job.run("Verify") == 0
    assert job.outputs["verify"]["exit-code"] == "1"
    assert job.log.count("::error file=") == len(names)
    assert not (work / "ran").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("path", "\n\n"), ("fail-on", "sometimes"), ("sarif", "a\nb=c"), ("version", "1;id"), ("version", "1 --pre")],
)  # fmt: skip
def test_what_is_not_understood_stops_it(job: Job, name: str, text: str) -> None:
    job.inputs |= {name: text}
    assert job.run("Install ckpt-tools" if name == "version" else "Verify") == 2
    assert f"::error::{name}: " in job.log
    assert not (job.home / "work/ckpt.sarif").exists()


def test_the_upload_takes_what_was_written() -> None:
    (step,) = (s for s in ACTION["runs"]["steps"] if "uses" in s)
    assert step["with"]["sarif_file"] == "${{ steps.verify.outputs.sarif }}"
    assert "inputs.upload-sarif == 'true'" in step["if"] and "always()" in step["if"]


@pytest.mark.exhaustive
def test_the_first_step_installs_this_package(job: Job) -> None:
    """From the package index: what it needs, and what builds it."""
    assert job.run("Install ckpt-tools") == 0
    assert Path(job.outputs["install"]["ckpt"]).parent.parent.parent == job.home
    assert job.run("Verify") == 0 and job.outputs["verify"]["exit-code"] == "1"


def test_the_hook_asks_about_files_that_ckpt_knows_and_pre_commit_takes_it() -> None:
    """Each suffix it names belongs to a format with a file of it that is good, and to none that is not."""
    from pre_commit.clientlib import load_manifest

    (hook,) = load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert hook["id"] == "ckpt-verify" and hook["language"] == "python"
    suffixes = re.findall(r"\w+", HOOK["files"].partition("(")[2])
    good = {p.suffix[1:] for p in FORMAT_FILES.glob("*/good/*")}
    assert suffixes == sorted(suffixes)
    assert set(suffixes) - good <= {"keras", "pdopt", "pdparams", "distcp", "hdf5"}


def test_the_hook_refuses_what_is_damaged() -> None:
    words = HOOK["entry"].split()
    assert words[0] == "ckpt"
    tree = sorted(p for p in DEMO.rglob("*") if re.search(HOOK["files"], p.name))
    sound = [p for p in tree if "iter_0000010/mp_rank_01" in str(p)]
    for files, code in ((tree, 1), (sound, 0)):
        assert ckpt(*words[1:], *files, cwd=ROOT).returncode == code
    assert len(tree) == 8 and len(sound) == 2
