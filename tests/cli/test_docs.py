"""The pages say what the code does: those that are written by hand, the README, and the manual pages in roff that two
formatters take without a complaint.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from hook_job import Job
from places import DOCS, ROOT
from safetensors_writer import vectors
from small_files import dcp, trainer
from timed import lay
from told_trees import answer, loaded, plant

from ckpt_tools import __version__, errors
from ckpt_tools.cli.app import COMMANDS, command, examples
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.output.failure import make_code


@pytest.mark.slow
def test_generated_pages_are_current():
    done = subprocess.run([sys.executable, DOCS / "make.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def test_every_error_is_documented():
    json_page, exit_page = (DOCS / "json.md").read_text(), (DOCS / "exit-codes.md").read_text()
    for cls in _subclasses(errors.CkptError):
        assert f"`{make_code(cls.__name__)}`" in json_page
        assert re.search(rf"^\| {cls.exit_code} \|", exit_page, re.MULTILINE)
        assert cls.hint


def test_the_changelog_knows_the_version():
    assert re.search(rf"^## {re.escape(__version__)}( |$)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


CHOOSES = (DOCS / "how-it-chooses.md").read_text()
TREES = re.findall(r"^(\S.*?) {2,}(\d) +(\S+)$", CHOOSES.split("## Twelve small trees")[1], re.MULTILINE)


@pytest.mark.parametrize(("files", "code", "said"), TREES)
def test_a_small_tree_is_answered_as_the_page_says(files: str, code: str, said: str, tmp_path: Path) -> None:
    plant(tmp_path, files)
    if code == "0":
        assert said in loaded(tmp_path).split()
    else:
        assert answer(tmp_path).startswith(f"exit {code} {said}")


def test_a_spare_that_is_written_later_makes_no_save_newer(tmp_path: Path) -> None:
    """Weights that were exported from the best so far stand beside it: it is loaded from its own file."""
    plant(tmp_path, "best.pt:epoch12 last.pt:epoch37@60 best.pth:model12@120")
    assert loaded(tmp_path) == "last.pt"


def test_the_names_of_the_table_are_declared_and_the_others_are_not() -> None:
    _, table = CHOOSES.split("| names of people's own loops | are |")
    rows, _, none = table.partition("`final.pt`")
    listed = " ".join(row for row in rows.splitlines() if row.startswith("| `"))
    names, others = (re.findall(r"`([^`]+)`", text) for text in (listed, f"`final.pt`{none.splitlines()[0]}"))
    assert len(names) > 20 and all(read_convention(name)[0] for name in names)
    assert len(others) == 3 and not any(read_convention(name)[0] for name in others)


def test_how_it_chooses_is_one_page_with_twelve_trees() -> None:
    assert len(TREES) == 12 and len(CHOOSES.splitlines()) <= 120
    assert "how-it-chooses.md" in (DOCS.parent / "README.md").read_text()


def test_the_front_page_is_short_and_shows_what_commands_print() -> None:
    """docs/make.py makes the pictures, and tests/cli/test_docs.py holds them to what is printed now."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in re.findall(r"\]\(((?:docs/)?[\w./-]+)", text):
        assert (ROOT / name).exists(), name
    shown = (ROOT / "docs/terminal-plan.svg").read_text()
    assert "ckpt-step" in shown and "@font-face" not in shown and "url(http" not in shown


def recipe(title: str, language: str = "sh") -> str:
    """The first block of a story of the front page."""
    text = (ROOT / "README.md").read_text().partition(f"**{title}")[2]
    return text.partition(f"```{language}\n")[2].partition("```")[0]


@pytest.mark.slow
def test_a_seal_sees_what_the_readme_flips(tmp_path: Path) -> None:
    lay(tmp_path, {"run/model.safetensors": vectors(w=bytes(range(250)) * 4)})
    env = {**os.environ, "PATH": f"{warm.commands()}:{os.environ['PATH']}"}
    words = ["sh", "-c", recipe("Any changed bit.**")]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "seal-mismatch" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "left_out", "code"),
    [
        ("loop", False, 0), ("older", True, 0), ("none", False, 0), ("by rank", False, 2), ("unusable", False, 4),
    ],
)  # fmt: skip
def test_the_recipe_of_a_job_resumes_or_stops(tmp_path: Path, held: str, left_out: bool, code: int) -> None:
    """With a script that fails if it starts at 0 although there is a checkpoint; a framework says its own arguments."""
    job = Job(tmp_path)
    job.holds(held)
    script = recipe("In a job script**")
    wanted = "--resume-args '--resume {path}' "
    assert wanted in script and "torchrun … train.py" in script
    script = script.replace(wanted, "" if left_out else wanted).replace("torchrun … ", "python ")
    done = job.bash(script, job.env(RUN=str(job.root)))
    assert done.returncode == code, done.stdout + done.stderr
    step = {
        "loop": ["--resume", str(job.root / "step_20.pt")],
        "older": ["--load", str(job.root), "--ckpt-step", "10"],
    }
    assert [t["args"] for t in job.told] == ([step.get(held, [])] if code == 0 else [])


@pytest.mark.slow
def test_the_recipe_for_python_sees_files(tmp_path: Path) -> None:
    script = recipe("In Python, and in training code**", "python")
    roots = {"trainer": lay(tmp_path / "trainer/checkpoint-5", trainer(5)).parent}
    roots["dcp"] = lay(tmp_path / "dcp/step-5", dcp(5)).parent
    for held in ("loop", "by rank"):
        (tmp_path / held).mkdir()
        job = Job(tmp_path / held)
        job.holds(held)
        roots[held] = job.root
    for held, root in roots.items():
        words = [sys.executable, "-c", script.replace("/runs/llm", str(root))]
        told, *files = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        assert files and all(Path(file).is_file() for file in files)
        assert told.startswith(str(root) if held != "by rank" else "None"), told


FILES = sorted((DOCS / "man").iterdir())


def shown(page: Path) -> str:
    """As a reader sees it, on lines so wide that few are broken."""
    done = subprocess.run(["mandoc", "-Tutf8", "-Owidth=1000", page], capture_output=True, text=True)
    return re.sub(".\b", "", done.stdout)


def test_each_command_has_a_page() -> None:
    names = ["ckpt", *("-".join(["ckpt", *name.split()]) for name in COMMANDS)]
    assert sorted(p.stem for p in FILES) == sorted(names)


@pytest.mark.parametrize("page", FILES, ids=lambda p: p.stem)
def test_mandoc_has_nothing_to_say(page: Path) -> None:
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True)
    # a date would change where nothing else does
    assert not [line for line in done.stdout.splitlines() if "missing date" not in line]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_flag_and_every_example(name: str) -> None:
    text = shown(DOCS / f"man/{'-'.join(['ckpt', *name.split()])}.1")
    for param in (p for p in command(name).params if not p.hidden):
        about = " ".join(param.help.replace("\\[", "[").split())
        assert about.replace("…", "...") in re.sub(r"\s+", " ", text), param.name
        for flag in param.opts if param.param_type_name == "option" else ():
            assert re.search(rf"^ +(-\w, )?(--[\w-]+, )*{flag}\b", text, re.MULTILINE), flag
    lines = {line.strip() for line in text.splitlines()}
    assert {line for line, _ in examples(name)} <= lines
