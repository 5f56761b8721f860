"""The pages say what the code does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import sample_results as sample
import warm
from places import DOCS, ROOT
from sample_results import field_names

from ckpt_tools import __version__, errors
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.report import Tensor
from ckpt_tools.output import json as emit_json
from ckpt_tools.output import jsonl
from ckpt_tools.output.failure import Failure, code_of


@pytest.mark.slow
def test_generated_pages_are_current():
    done = subprocess.run([sys.executable, DOCS / "make.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _answers():
    anatomy = Anatomy(tensors=[Tensor("w", "f32", (2,), 8, 0, "0")], globals=["os system"])
    yield from (sample_json(r) for r in (sample.verification(), sample.plan(), sample.scan()))
    yield json.loads(emit_json.render_file(sample.report("/x"), anatomy, {"os system": "dangerous"}))
    yield sample_json(Failure("plan", "usage-error", "m", "h", 2))
    yield from (json.loads(line) for line in jsonl.render(sample.verification()).splitlines())
    for command in (["explain", "truncated"], ["formats"], ["layouts"], ["launchers"]):
        done = warm.completed([*command, "--json"], os.environ)
        yield json.loads(done.stdout)


def sample_json(result):
    return json.loads(emit_json.render(result))


@pytest.mark.slow
def test_every_json_field_is_documented():
    page = (DOCS / "json.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)`", page))
    answers = list(_answers())
    missing = {key for answer in answers for key in field_names(answer)} - documented
    assert not missing
    for schema in {answer["schema"].removeprefix("ckpt-tools/") for answer in answers if "schema" in answer}:
        assert schema in page


def _subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def test_every_error_is_documented():
    json_page, exit_page = (DOCS / "json.md").read_text(), (DOCS / "exit-codes.md").read_text()
    for cls in _subclasses(errors.CkptError):
        assert f"`{code_of(cls.__name__)}`" in json_page
        assert re.search(rf"^\| {cls.exit_code} \|", exit_page, re.MULTILINE)
        assert cls.hint


def test_the_changelog_knows_the_version():
    assert re.search(rf"^## {re.escape(__version__)}( |$)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
