"""Attacks by what lies in a scanned tree: pickles, bombs, FIFOs and links, paths inside files, names. Each
says what it got ("" when nothing).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from _scene import HOME, MARK, OLD, Answer, Scene

Told = tuple[Answer, str]

# ---- pickles


def call(scene: Scene, module: bytes = b"posix", name: bytes = b"system") -> bytes:
    """Opcodes that leave a mark when somebody loads them."""
    command = f"touch {scene.place}/{MARK}".encode()
    words = b"".join(b"\x8c" + bytes([len(word)]) + word for word in (module, name))
    return words + b"\x93X" + len(command).to_bytes(4, "little") + command + b"\x85R"


def archive(path: Path, pickle: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """A torch file with that pickle in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as out:
        for name, data in (("data.pkl", pickle), ("byteorder", b"little"), ("version", b"3\n")):
            out.writestr(f"a/{name}", data)
    return path


def pickled(make: Callable[[Scene], bytes], name: str = "step_20.pt") -> Callable[[Scene], Told]:
    """A checkpoint with such a pickle: verified, and asked for."""

    def carry_out(scene: Scene) -> Told:
        data = make(scene)
        if name.endswith(".pt"):
            archive(scene.runs / name, data)
        else:
            shutil.copytree(HOME / "fixtures/formats/dcp/good/single", scene.runs / "step-20")
            (scene.runs / "step-20" / name).write_bytes(data)
        seen = scene.ckpt("verify", scene.runs, "-q")
        planned = scene.ckpt("plan", scene.runs, "-q", "--world-size", "1")
        if (scene.place / MARK).exists():
            return planned, "it was executed"
        if planned.code == 0:
            return planned, "it was planned"
        return seen, "" if seen.code else "it was called sound"

    return carry_out


def plain_call(scene: Scene) -> bytes:
    return b"\x80\x04" + call(scene) + b"0}."


def through_a_module(scene: Scene) -> bytes:
    return b"\x80\x04" + call(scene, b"random", b"_os.system") + b"0}."


def padded(scene: Scene) -> bytes:
    """More steps before the call than anybody reads."""
    return b"\x80\x04" + b"N0" * 3_000_000 + call(scene) + b"0}."


def behind_the_end(scene: Scene) -> bytes:
    """A harmless pickle, and another one behind its end."""
    return b"\x80\x04}.\x80\x04" + call(scene) + b"0}."


# ---- bombs


def tree(write: Callable[[Path], object], *words: str) -> Callable[[Scene], Told]:
    """A tree that somebody has filled, and one command about it."""

    def carry_out(scene: Scene) -> Told:
        scene.runs.mkdir()
        write(scene.runs)
        return scene.ckpt(*(words or ("verify",)), scene.runs, "-q"), ""

    return carry_out


def zip_bomb(runs: Path) -> None:
    """1 GiB of zeros in 1 MB."""
    with (
        zipfile.ZipFile(runs / "step_20.pt", "w", zipfile.ZIP_DEFLATED) as out,
        out.open("a/data.pkl", "w") as f,
    ):
        for _ in range(1024):
            f.write(bytes(1 << 20))


def zstd_bomb(runs: Path) -> None:
    """A chunk of a zarr array that decodes into 4 GiB."""
    import zstandard

    shape = {
        "chunks": [16],
        "shape": [16],
        "dtype": "<f4",
        "order": "C",
        "fill_value": 0,
        "filters": None,
        "zarr_format": 2,
    }
    array = runs / "checkpoint_20" / "w"
    array.mkdir(parents=True)
    (array / ".zarray").write_text(json.dumps({**shape, "compressor": {"id": "zstd", "level": 1}}))
    compressor = zstandard.ZstdCompressor().compressobj()
    with (array / "0").open("wb") as f:
        for _ in range(4096):
            f.write(compressor.compress(bytes(1 << 20)))
        f.write(compressor.flush())


def many_entries(runs: Path) -> None:
    """10⁶ entries of a zip archive."""
    with zipfile.ZipFile(runs / "step_20.pt", "w") as out:
        for i in range(1_000_000):
            out.writestr(f"a/data/{i}", b"")


def doubled(runs: Path) -> None:
    """Tuples of tuples: 2³⁰⁰ of them in 600 bytes."""
    twice = (b"q" + bytes([i % 250]) + b"h" + bytes([i % 250]) + b"\x86" for i in range(300))
    archive(runs / "step_20.pt", b"\x80\x04)" + b"".join(twice) + b".")


def colliding(runs: Path) -> None:
    """100,000 keys of one hash."""
    keys = b"".join(
        b"\x8a\x0a" + (k * ((1 << 61) - 1)).to_bytes(10, "little") + b"N" for k in range(1, 100_001)
    )
    archive(runs / "step_20.pt", b"\x80\x04}(" + keys + b"u.")


def nested(name: str, count: int = 1_000_000) -> Callable[[Path], None]:
    """A JSON file that nests."""

    def write(runs: Path) -> None:
        (runs / "step-20").mkdir()
        (runs / "step-20" / name).write_bytes(b'{"a":' + b"[" * count)

    return write


def nested_pickle(runs: Path) -> None:
    """Lists in lists, 10⁶ deep."""
    archive(runs / "step_20.pt", b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".")


def empty_files(runs: Path) -> None:
    for i in range(8000):
        (runs / f"step_{i}.pt").touch()


# ---- FIFOs, devices, links


def special(make: Callable[[Path, Scene], object]) -> Callable[[Scene], Told]:
    """In place of a file of the newest checkpoint, of its tracker and of an index something that is no file."""

    def carry_out(scene: Scene) -> Told:
        runs = scene.demo()
        part = runs / "iter_0000020/mp_rank_00/model_optim_rng_0.pt"
        for path in (
            part,
            runs / "latest_checkpointed_iteration.txt",
            runs / "model.safetensors.index.json",
            runs / ".metadata",
        ):
            path.unlink(missing_ok=True)
            make(path, scene)
        secret = {"CKPT_SECRET_WORD": MARK}
        answer = scene.ckpt("verify", runs, env=secret)
        planned = scene.ckpt("plan", runs, "--order", "step", "--json", env=secret)
        for done in (answer, planned):
            if MARK in done.out + done.err:
                return done, "the environment was shown"
            if done.code < 0 or done.code == 70 or done.hung:
                return done, ""
        return answer, ""

    return carry_out


def fifo(path: Path, scene: Scene) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path, Scene], None]:
    return lambda path, _: path.symlink_to(target)


def tracker_path(scene: Scene) -> Told:
    """DeepSpeed's `latest` names a directory elsewhere."""
    shutil.copytree(HOME / "fixtures/demo", scene.evil / MARK)
    good = next((HOME / "fixtures/layouts/deepspeed").iterdir())
    shutil.copytree(good, scene.runs, dirs_exist_ok=True)
    for path in scene.runs.rglob("latest"):
        path.write_text(f"../evil/{MARK}")
    answer = scene.ckpt("latest", scene.runs, "--rank", "0", "--order", "tracker")
    return answer, "a path outside the tree was chosen" if MARK in answer.out else ""


def index_path(scene: Scene) -> Told:
    """An index names a file outside its directory."""
    (scene.evil / f"{MARK}.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    step = scene.runs / "checkpoint-20"
    step.mkdir(parents=True)
    weights = {"weight_map": {"w": f"../../evil/{MARK}.safetensors"}, "metadata": {"total_size": 0}}
    (step / "model.safetensors.index.json").write_text(json.dumps(weights))
    (step / "trainer_state.json").write_text('{"global_step": 20}')
    answer = scene.ckpt("latest", scene.runs, "--rank", "0", "--world-size", "1")
    return answer, "a path outside the tree was chosen" if MARK in answer.out else ""


# ---- names


def control_characters(scene: Scene) -> Told:
    """Names that speak to the terminal."""
    for name in ("\x1b]0;title\x07", "\x1b[2J", "a\rb", "\x9b31m", "\u202egnp"):
        sound(scene.runs / f"run-{name}" / "step_20.safetensors")
    answer = Answer(0, "", "")
    for words in (("ls", scene.runs), ("plan", scene.runs), ("verify", scene.runs, "--color", "always")):
        answer = scene.ckpt(*words)
        text = answer.err if words[-1] == "always" else answer.out + answer.err
        if any(c in text for c in "\x07\r\x9b\u202e") or "\x1b[2J" in text or "\x1b]" in text:
            return answer, "control characters reached the terminal"
    return answer, ""


def shell_words(scene: Scene) -> Told:
    """Names that a shell would run, through eval."""
    for i, name in enumerate(("$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '", "a\ntouch PWNED\n")):
        runs = scene.place / f"shell-{i}"
        sound(runs / name / "step_20.safetensors")
        answer = scene.ckpt("hook", runs, "--plan-dir", scene.home / f"plans-{i}", "--world-size", "1")
        subprocess.run(["sh", "-c", answer.out], cwd=scene.place, capture_output=True, check=False)
        if answer.code or (scene.place / MARK).exists():
            return answer, "a name was run" if (scene.place / MARK).exists() else ""
    return answer, ""


def lines(scene: Scene) -> Told:
    """A name with a line break: two paths where one is expected, and a variable of its own in a TaskProlog."""
    sound(scene.runs / f"a\nexport LD_PRELOAD=/{MARK}.so\nb" / "step_20.safetensors")
    for words in (
        ("latest", scene.runs, "--rank", "0", "--world-size", "1"),
        ("hook", scene.runs, "--format", "slurm", "--plan-dir", scene.home / "p"),
    ):
        answer = scene.ckpt(*words)
        if any(line.startswith((f"/{MARK}", "export LD_PRELOAD")) for line in answer.out.splitlines()):
            return answer, "a line of the attacker's"
    return answer, ""


def arguments(scene: Scene) -> Told:
    """Names that begin with a dash become words of the training's command line."""
    answer = Answer(0, "", "")
    for name in ("--config=/PWNED", "-rf", "--load"):
        runs = scene.place / f"dash{name.replace('/', '_')}"
        sound(runs / name / "step_20.safetensors")
        answer = scene.ckpt(
            "run",
            name,
            "--world-size",
            "1",
            "--plan-dir",
            scene.home / "p",
            "--",
            *_SHOW,
            "{ckpt.path}",
            "{ckpt.args}",
            cwd=runs,
        )
        if answer.code == 0 and any(
            word.startswith("-") and word not in _KNOWN for word in json.loads(answer.out)
        ):
            return answer, "a name became an option"
        answer = scene.ckpt(
            "run",
            runs,
            "--world-size",
            "1",
            "--plan-dir",
            scene.home / "p",
            "--",
            *_SHOW,
            "{ckpt.path}",
            "{ckpt.args}",
        )
        if answer.code == 0 and any(
            word.startswith("-") and word not in _KNOWN for word in json.loads(answer.out)
        ):
            return answer, "a name became an option"
    return answer, ""


_SHOW = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")
_KNOWN = ("--load", "--ckpt-step", "--resume", "--resume_from_checkpoint", "--load_dir", "--tag")


def sound(path: Path) -> None:
    """A small safetensors file that is whole."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\x80?")
    os.utime(path, (OLD, OLD))


# ---- the working directory and the environment

_HOSTILE = (
    "json",
    "typer",
    "runpy",
    "torch",
    "zstandard",
    "numpy",
    "ckpt_tools",
    "safetensors",
    "isal",
    "xxhash",
    "sitecustomize",
)


def hostile_directory(scene: Scene) -> Path:
    """A working directory with modules of the names that ckpt imports."""
    for name in _HOSTILE:
        (scene.evil / f"{name}.py").write_text(
            f"import pathlib\npathlib.Path({str(scene.place / MARK)!r}).touch()\nraise ImportError\n"
        )
    return scene.evil


def working_directory(scene: Scene) -> Told:
    """Modules in the working directory, with the command, and down to the children that it starts."""
    cwd = hostile_directory(scene)
    sound(scene.runs / "step_20.safetensors")
    answer = scene.ckpt("verify", scene.runs, "--level", "load", "-q", cwd=cwd)
    return answer, "a module of the working directory was imported" if (scene.place / MARK).exists() else ""


def module_option(options: Iterable[str], path: str = str(HOME)) -> Callable[[Scene], Told]:
    """``python -m``, whose first place for modules is the working directory; ``path`` is PYTHONPATH."""

    def carry_out(scene: Scene) -> Told:
        cwd = hostile_directory(scene)
        sound(scene.runs / "step_20.safetensors")
        env = {**scene.environ, "PYTHONPATH": path}
        command = [sys.executable, *options, "-m", "ckpt_tools", "verify", str(scene.runs), "-q"]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        answer = Answer(done.returncode, done.stdout, done.stderr)
        return answer, (
            "a module of the working directory was imported" if (scene.place / MARK).exists() else ""
        )

    return carry_out
