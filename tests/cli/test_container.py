"""The image of Containerfile: what it promises, as text; and, with ``-m image``, built and started."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES, ROOT

TEXT = re.sub(r"\\\n\s*", " ", (ROOT / "Containerfile").read_text())
STAGES = [stage.strip().splitlines() for stage in TEXT.split("\nFROM ")[1:]]
PROGRAMS = ("podman", "mmdebstrap", "runc")
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""Podman's own may be above what the machine allows, which ends it."""


def words(stage: list[str], instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in stage if line.startswith(f"{instruction} ")]


def test_the_last_stage_runs_one_program_as_nobody() -> None:
    build, image = STAGES
    assert words(build, "RUN") and not words(image, "RUN")  # there is no shell
    assert [user for user in words(image, "USER") if re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)]
    (entry,) = words(image, "ENTRYPOINT")
    assert json.loads(entry)[1:] == ["-P", "-m", "ckpt_tools"]
    assert json.loads(*words(image, "CMD")) == ["--help"]


def test_both_stages_have_the_same_python() -> None:
    """What is compiled for one is loaded by the other: Debian 12 has 3.11."""
    builder, base = re.findall(r"^ARG \w+=(\S+)$", TEXT, re.MULTILINE)
    assert "python:3.11-" in builder and builder.endswith("-bookworm")
    assert base.endswith("debian12:nonroot")
    assert '"/usr/bin/python3.11"' in TEXT


def test_only_what_is_released_is_sent_to_the_builder() -> None:
    assert (ROOT / ".containerignore").read_text().split() == ["*", "!dist/*.whl", "!constraints.txt"]
    sources = {source for line in words(STAGES[0], "COPY") for source in line.split()[:-1]}
    assert sources == {"dist/*.whl", "constraints.txt"}


def run(*command: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, **more)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Built upon Debian itself, for the bases that Containerfile names are in registries."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None] or ["root"] * bool(os.geteuid())
    if missing:
        pytest.fail(f"-m image needs root and {', '.join(PROGRAMS)}; missing: {missing}", pytrace=False)
    home = tmp_path_factory.mktemp("image")
    base, made = (f"localhost/ckpt-tests-{os.getpid()}-{name}" for name in ("base", "made"))
    packages = "--include=python3,python3-venv,ca-certificates"
    done = run("mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", home / "base.tar")
    assert done.returncode == 0, done.stderr
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = run(ROOT / ".ci/build", home / "context/dist", env=here)
    assert done.returncode == 0, done.stderr
    for name in ("Containerfile", ".containerignore", "constraints.txt"):
        shutil.copy(ROOT / name, home / "context")
    try:
        done = run("podman", "import", "--quiet", home / "base.tar", base)
        assert done.returncode == 0, done.stderr
        certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"  # the machine's own, where it has its own
        build = ["podman", "build", "--quiet", "--isolation=chroot", "--network=host"]
        build.append(f"--volume={certificates}")
        arguments = [f"--build-arg={name}={base}" for name in ("BUILDER", "BASE")]
        # A stage without a name would stay behind.
        for words in (("--target", "build", "--tag", f"{made}-stage"), ("--tag", made)):
            done = run(*build, *arguments, *words, home / "context")
            assert done.returncode == 0, done.stdout + done.stderr
        yield made
    finally:
        run("podman", "rmi", "--force", made, f"{made}-stage", base)


def container(image: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """As docs/container.md starts it, and without a network; crun refuses cgroups of both versions."""
    data = f"{FIXTURES / 'demo'}:/data:ro"
    bounds = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")
    started = ("podman", "--runtime", "runc", "run", "--rm", "--network=none", *LIMITS, *bounds, "-v", data)
    return run(*started, *options, image, *command)


@pytest.mark.image
def test_it_verifies_where_nothing_can_be_written(image: str) -> None:
    done = container(image, "verify", "/data", "-q")
    assert done.returncode == 1 and "broken: 3 of 8 files" in done.stdout, done.stderr
    done = container(image, "plan", "/data", "--order", "step")
    assert done.returncode == 0 and done.stdout.startswith("Resume from step 10"), done.stderr
    assert "warning" not in done.stderr


@pytest.mark.image
def test_it_is_nobody_and_owns_nothing(image: str) -> None:
    code = (
        "import os, ckpt_tools; home = os.path.dirname(ckpt_tools.__file__)\n"
        "print(os.getuid(), os.getgid(), os.access(home, os.W_OK), os.path.exists(home + '/__pycache__'))"
    )
    done = container(image, "-c", code, options=("--entrypoint=/usr/bin/python3.11",))
    assert done.stdout.split() == ["65532", "65532", "False", "True"], done.stderr


@pytest.mark.image
def test_verdicts_are_kept_where_there_is_a_place_for_them(image: str, tmp_path: Path) -> None:
    """And any user will do."""
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 1234, 1234)
    options = ("--user=1234:1234", "--env=CKPT_NO_CACHE=0", "--env=CKPT_CACHE_DIR=/cache")
    done = container(image, "verify", "/data", "-q", options=(*options, f"-v={cache}:/cache"))
    assert done.returncode == 1
    assert [p for p in cache.rglob("*") if p.is_file()]
