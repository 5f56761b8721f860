"""A plan -> one line for ``eval`` in a POSIX shell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ckpt_tools.errors import UsageError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.words import printable

# ---- The arguments of --resume-args, by which a command learns which checkpoint was chosen.


_FIELD = re.compile(r"(?<!\$)\{(\w+)\}")  # ${HOME} is the shell's
FLAG = "--resume-args"
ONLY_PATH = "CKPT_ARGS is empty, only CKPT_PATH is set: to pass arguments add --resume-args '--resume {}'"
ALL_FILES = "--resume-args '--resume {files}' passes each as a word; {step} passes the number"
EACH_RANK = "add --rank N for each rank, or start each with 'ckpt run ROOT --worker'; --json lists all files"


def fill_arguments(
    wanted: Sequence[str], known: Mapping[str, object], files: Sequence[str]
) -> tuple[str, ...]:
    """Return the words of --resume-args with the values of ``known`` for their fields, () if one is None; the
    word ``{files}`` becomes a word for each of the ``files``.
    """
    known = {**known, "files": files or None}
    if any(known[name] is None for word in wanted for name in _FIELD.findall(word)):
        return ()
    filled = (files if w == "{files}" else [_FIELD.sub(lambda m: str(known[m[1]]), w)] for w in wanted)
    return tuple(chain.from_iterable(filled))


def warn_of_others(path: str | None, files: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a warning if the command learns of only one of the ``files`` to load, else ""."""
    other_fields = {name for word in wanted for name in _FIELD.findall(word)} - {"path"}
    others = [os.path.basename(file) for file in files if file != path]
    if path is None or path not in files or not others or other_fields:
        return ""
    more = f" and {len(others) - 1} more" * bool(others[1:])
    by = "{path}" if wanted else "the path"
    return f"{by} names {os.path.basename(path)} alone, and {others[0]}{more} must be loaded with it"


def explain_silence(layout: str, path: str | None, wanted: Sequence[str], filled: Sequence[str] = ()) -> str:
    """Return why a command would start from scratch although a checkpoint was chosen; ``filled`` are the
    filled words of --resume-args that the command line leaves out.
    """
    if filled:
        why = f"'{{ckpt.args}}', which stands for {words(filled)}, is not among its words"
    elif path is None:
        why = "no single path names its files (each rank loads its own, or several)"
        why += "" if wanted else f", and the layout {layout} has no arguments"
    elif wanted:
        why = f"what --resume-args asks for is not known: {' '.join(wanted)}"
    else:
        why = f"the layout {layout} has no arguments, so '{{ckpt.args}}' is empty"
    return f"a checkpoint was chosen, and the command would not learn of it: {why}"


def name_example(path: str | None, files: Sequence[str]) -> str:
    """Return the field to suggest for --resume-args: ``{files}`` if ``path`` is one of several ``files``."""
    return "{files}" if path in files and files[1:] else "{path}"


def render(plan: LoadPlan | Failure, _view: object = None) -> str:
    """Return ``export CKPT_PATH=… …``, None as empty. Raise UsageError if no value names the checkpoint.
    Of a failure return what makes eval fail: eval of an empty text would succeed.
    """
    if isinstance(plan, Failure):
        return f"(exit {plan.exit_code})\n"
    checkpoint, path, env = plan.checkpoint, plan.resume.path, plan.resume.env
    if checkpoint is None:
        names = ("CKPT_PATH", "CKPT_STEP", "CKPT_EPOCH", "CKPT_STEP_IN_EPOCH")
        return exports({**dict.fromkeys(names), "CKPT_RESUME": 0, "CKPT_ARGS": None})
    if path is None and len(plan.by_rank) == 1 and len(plan.by_rank[0].files) == 1:
        path = plan.by_rank[0].files[0].path
    if not (path or plan.resume.args or env):
        raise UsageError(explain_silence(checkpoint.layout, path, ()), EACH_RANK, rule="choice/silent-resume")
    values: dict[str, object] = {
        "CKPT_PATH": path,
        "CKPT_STEP": plan.resume_step,
        "CKPT_EPOCH": checkpoint.epoch,
        "CKPT_STEP_IN_EPOCH": checkpoint.step_in_epoch,
        "CKPT_RESUME": 1,
        # One text with every word quoted: eval "set -- $CKPT_ARGS" in any POSIX shell, and in bash and zsh
        # eval "args=($CKPT_ARGS)", give the words back, whatever is in them.
        "CKPT_ARGS": words(plan.resume.args),
    }
    values |= {name: env[name] for name in env if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)}
    return exports(values)


def words(args: Iterable[str]) -> str:
    """Return words as one text, each quoted if any shell needs quotes for it."""
    # zsh takes an unquoted =ls for the path of ls; shlex leaves it, because no other shell does.
    return " ".join(f"'='{shlex.quote(a[1:])}" if a.startswith("=") else shlex.quote(a) for a in args)


def exports(values: Mapping[str, object]) -> str:
    """Return one line that exports all ``values``; None is exported as an empty text."""
    quoted = {k: "" if value in (None, "") else shlex.quote(str(value)) for k, value in values.items()}
    return f"export {' '.join(f'{name}={value}' for name, value in quoted.items())}\n"


def task_prolog(values: Mapping[str, str]) -> str:
    """Return a TaskProlog's output: Slurm takes the rest of a line as it is (slurm.conf(5), srun(1))."""
    for name, value in values.items():
        if "\n" in value:
            why = f"{name} holds a line break, which a TaskProlog cannot say"
            raise UsageError(why, "rename the directory")
    return "".join(f"export {name}={value}\n" for name, value in values.items())


def prolog_failure(message: str, hint: str) -> str:
    """Return a TaskProlog's output if there is no answer, as print lines: Slurm shows its stderr nowhere."""
    lines = [f"ckpt: error: {message}", *([f"hint: {hint}"] if hint else [])]
    return "".join(f"print {printable(line)}\n" for text in lines for line in text.splitlines())
