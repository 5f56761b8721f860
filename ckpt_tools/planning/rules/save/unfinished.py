"""``save/unfinished``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/unfinished",
    code="unfinished-save",
    more=("mode-not-final",),
    effect=Effect.REJECT,
    answer="wait if its job still writes it (--settle); else nothing can resume from it",
    why="""\
The save bears the mark of one that was not committed, or lacks what is written last, or is empty. A
reader that takes it loads half a state.
For: huggingface/transformers#27925 (tmp-checkpoint-N), Orbax's .orbax-checkpoint-tmp, MindIO's
_tmp, Nerogar/OneTrainer#498.
""",
)
