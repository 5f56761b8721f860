"""``save/missing-rank``."""

from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/missing-rank",
    code="missing-rank",
    effect=Effect.REJECT,
    answer="restore the file of the rank, or say --world-size N if the job was smaller",
    why="""\
A rank of the save has no file, and nothing shows that another holds the same state. Frameworks
hang, or load what is there, when ranks are missing.
For: verl-project/verl#1535, huggingface/accelerate#3010: the parts of one node only.
""",
)
