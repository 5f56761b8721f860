"""What the name of a file that somebody's own training loop saved says:
``step_200.pt``, ``best_model.pt``, ``optim_200.pt``, ``last.pt``. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ckpt_tools.model.part import Kind


class BareName(NamedTuple):
    """``number`` is one whose unit the name does not tell;
    ``alias`` is a word for a file that is written over (``last``); ``words`` are those that mean nothing
    here.

    ``pattern`` is the name without its numbers: who saved two files of one pattern saved them in the same
    place of a program. ``noun``: a word of it is one for a model or its state.
    """

    role: str = ""
    kind: Kind = Kind.PERIODIC
    step: int | None = None
    epoch: int | None = None
    number: int | None = None
    alias: str = ""
    words: tuple[str, ...] = ()
    pattern: str = ""
    shard: bool = False
    noun: bool = False

    @property
    def numbered(self) -> bool:
        return (self.step, self.epoch, self.number) != (None, None, None)


_PADDLE = dict.fromkeys(("pdparams", "pdparam", "pdz"), "") | dict.fromkeys(("pdstates", "states"), "trainer")
_PADDLE |= {"pdopt": "optimizer", "pdema": "ema"}
"""Endings of PaddlePaddle's names, each with the role that it tells: one save has a file of each."""
SUFFIXES = re.compile(
    r"\.(pt|pth|pth\.tar|pth\.lora|pth\.adapter(?:_v2)?|tar|pyth|th|torch|bin|ckpt|checkpoint|safetensors|npz|npy|pkl|eqx|joblib|keras|weights\.h5|"
    rf"{'|'.join(_PADDLE)})$",
    re.IGNORECASE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STEP = "step steps globalstep iter iters iteration iterations it itr update updates ba"
"""The last are Composer's batches."""
_UNITS = {
    **dict.fromkeys(_STEP.split(), "step"),
    **dict.fromkeys(("epoch", "epochs", "ep"), "epoch"),
    "epochstep": "step in the epoch",  # AReaL's epoch1epochstep10globalstep10
}
_ROLES = {
    **dict.fromkeys(
        ("optim", "optims", "optimizer", "optimizers", "optimiser", "opt", "adam", "adamw"), "optimizer"
    ),
    **dict.fromkeys(("scheduler", "sched", "lrscheduler"), "scheduler"),
    **dict.fromkeys(("rng", "random"), "rng"),
    **dict.fromkeys(("scaler", "gradscaler"), "scaler"),
    **dict.fromkeys(("preprocessor", "normalizer", "normaliser", "rms", "vecnormalize"), "normalizer"),
    **dict.fromkeys(("buffer", "buffers", "replay"), "buffer"),
    **{role: role for role in ("ema", "trainer", "criterion")},
}
PAIRS = (
    (("g", "netg", "gen", "generator"), ("d", "netd", "disc", "discriminator", "do"), "discriminator"),
    (("actor",), ("critic",), "critic"),
    (("policy", "pi"), ("value", "vf"), "value"),
    (("encoder",), ("decoder",), "decoder"),
)
"""Words for two networks that are trained together, and the role of the second where both are there."""
_KINDS = {
    "best": Kind.BEST,
    **dict.fromkeys(
        ("final", "release", "export", "exported", "merged", "consolidated", "inference", "deploy"),
        Kind.RELEASE,
    ),
}
LAST_WORDS = frozenset(("last", "latest", "newest", "current"))
_BEFORE = frozenset(("prev", "previous"))
ALIASES = LAST_WORDS | _BEFORE
_PLAIN = _words(
    "model models net network ckpt ckpts checkpoint checkpoints chkpt chkpnt cp weight weights state "
    "states dict param params save saved snapshot pytorch torch full global train training lr at pth"
)
_NOUNS = _PLAIN - _words("dict pytorch torch full global train training lr at pth saved")
METRICS = _words(
    "loss acc accuracy val valid validation eval test score metric miou iou map f1 auc psnr fid bleu "
    "wer cer ppl perplexity reward return top1 top5"
)
_GLUED = _words("rank gpu node worker shard part fold seed v version run exp trial stage tp pp dp mp")
"""Words whose number is part of a name, and no measure of progress."""
_KNOWN = frozenset({*_UNITS, *_ROLES, *_KINDS, *ALIASES, *_PLAIN, *METRICS, *_GLUED})
_TOKEN = re.compile(r"[a-z]+\d*|\d+[a-z]*")
_SPLIT = re.compile(r"([a-z]+)(\d+)$|(\d+)([a-z]+)$")
_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])$")
_CAPPED = re.compile(r"(?<![A-Za-z])([Bb]est|[Ll]ast|[Ll]atest|[Ff]inal)(?=[A-Z])")
"""Such a word before another one that begins with a capital (``bestModel``, CHGNet's ``bestE``)."""
_STEPS = re.compile(rf"(?<![a-z])(?:{'|'.join(_UNITS)})[-_=.]?\d", re.IGNORECASE)
_OF_TOKENS = re.compile(
    r"(?<![a-z])tok(?:en)?s?[-_=]?\d+(?:\.\d+)?[kmbt]?(?![a-z\d])"
    r"|(?<![a-z\d.])\d+(?:\.\d+)?[kmbt]?[-_]?tok(?:en)?s?(?![a-z])",
    re.IGNORECASE,
)
"""How many tokens a save has seen: no more than its step or epoch, where it is told (``step10-tokens4B``)."""
_SCALES = {"k": 1000, "m": 1000000}


def stem_of(name: str) -> str:
    return SUFFIXES.sub("", name)


def _tokens(stem: str) -> Iterator[str]:
    """Words and numbers: known words apart from the number that they are written with, fractions left out."""
    stem = _CAPPED.sub(r"\1 ", stem)
    if _STEPS.search(stem):
        stem = _OF_TOKENS.sub(" ", stem)
    for token in _TOKEN.findall(re.sub(r"\d+(?:\.\d+)+(e-?\d+)?", " ", stem.lower())):
        m = _SPLIT.match(token)
        word, number = ((m[1], m[2]) if m[1] else (m[4], m[3])) if m else ("", "")
        if word in _KNOWN:
            yield from (word, number)
        elif word in _SCALES and m and m[3]:  # 200k, and no k200
            yield str(int(number[:18]) * _SCALES[word])
        else:
            yield token


def read_bare_name(name: str) -> BareName:
    """What a file's name says, without looking into it."""
    stem = stem_of(name)
    reader = _Reader()
    tokens = [*_tokens(stem), ""]
    for token, after in pairwise(tokens):
        reader.take(token, after)
    said = reader.said()
    paddle = _PADDLE.get(name[len(stem) + 1 :])
    if paddle is not None and stem.isdigit():  # Model.fit counts epochs
        said = said._replace(number=None, epoch=said.number)
    return said._replace(
        role=said.role or paddle or "",
        pattern=re.sub(r"\d+", "", stem).strip("-_. ="),
        shard=bool(re.search(r"\d-of-\d", stem)),
        noun=not _NOUNS.isdisjoint(tokens),
    )


_SAVES = frozenset(("checkpoint", "checkpoints", "ckpt", "ckpts", "chkpt", "chkpnt"))


def calls_a_save(name: str) -> bool:
    """Whether a name of a file or of a directory is one that only a checkpoint has, all of them (``ckpts``),
    or what points to the newest: nothing in it means something else.
    """
    said = read_bare_name(name)
    if said.words:
        return False
    counted = (said.step, said.epoch) != (None, None) or name.isdigit()
    return counted or bool(said.alias) or says_checkpoint(name)


def says_checkpoint(name: str) -> bool:
    """Whether the word, however it is written, is in a name."""
    return not _SAVES.isdisjoint(_tokens(stem_of(name)))


def may_be_later(name: str, step: int | None, epoch: int | None) -> bool:
    """Whether what is called so may be of a later step or epoch, as what tells none may be."""
    said = read_bare_name(name)
    number = said.number if said.step is None else said.step
    if said.epoch is not None and (number is None or (epoch is not None and said.epoch != epoch)):
        return epoch is None or said.epoch > epoch
    return number is None or step is None or number > step


_OF_PAIRS = frozenset(word for pair in PAIRS for words in pair[:2] for word in words)


def _is_of_the_name(token: str) -> bool:
    """Whether a token is a word that tells nothing of what a file holds."""
    return bool(token) and not token.isdigit() and token not in _KNOWN and token not in _OF_PAIRS


class _Reader:
    """Goes through the tokens of one name."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.plain: list[int] = []
        self.words: list[str] = []
        self.role, self.kind, self.alias, self.before = "", Kind.PERIODIC, "", ""

    def take(self, token: str, after: str) -> None:
        before, self.before = self.before, token
        if token.isdigit():
            self._number(token, before, after)
        elif token in _ROLES:
            self.role = self.role or _ROLES[token]
        elif token in _KINDS:
            self.kind = self.kind if self.kind is Kind.BEST else _KINDS[token]
        elif token in ALIASES:
            self.alias = token
        elif token in _UNITS:
            if (
                before.isdigit() and not after.isdigit() and self.plain and self.plain[-1] == int(before)
            ):  # 200_steps
                self.known.setdefault(_UNITS[token], self.plain.pop())
        elif token not in _PLAIN and token not in METRICS:
            self.words.append(token)

    def _number(self, token: str, before: str, after: str) -> None:
        if len(token) > 18 or _DATE.match(token) or before in METRICS or before in _BEFORE:
            return  # prev1 is older than prev0
        if _is_of_the_name(before) and _is_of_the_name(after):
            self.words.append(token)  # qwen_3_4b, flux_1_dev: whoever counts saves does so at an end
        elif before in _GLUED:
            self.words[-1:] = [before + token]
        elif before in _UNITS:
            self.known.setdefault(_UNITS[before], int(token))
        else:
            self.plain.append(int(token))

    def said(self) -> BareName:
        number = self.plain[0] if len(self.plain) == 1 and not self.known else None
        return BareName(
            self.role,
            self.kind,
            self.known.get("step"),
            self.known.get("epoch"),
            number,
            self.alias,
            tuple(self.words),
        )
