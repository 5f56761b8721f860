"""``save/missing-part``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/missing-part",
    code="missing-part",
    effect=Effect.REJECT,
    answer="restore the file that is named from a copy of this save",
    why="""\
A file that every save of this layout has, or that an index of the save names, is absent. Many
loaders go on without it: an optimizer or a scheduler that begins anew is noticed days later, if at
all.
For: torch/distributed/checkpoint/filesystem.py (.metadata), allenai/OLMo#855, cgarciae/ciclo#12.
""",
)
