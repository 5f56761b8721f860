"""``order/times-mute``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="order/times-mute",
    code="mtime-not-kept",
    effect=Effect.ASK,
    answer="--order step; copy with times: cp -a, rsync -t",
    why="""\
The times cannot be those of training: all equal, before 1980, or as close together as a copy or an
upload makes them. Steps decide then, and saves without comparable steps are a question.
For: cp -r, git clone, downloads from a hub, object stores that keep the time of the upload.
""",
)
