"""``save/leaves-its-place``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/leaves-its-place",
    code="path-escape",
    more=("external-data",),
    effect=Effect.REJECT,
    needs=Level.STRUCTURE,
    answer="bring the data into the checkpoint, or correct the path in it",
    why="""\
Something in the checkpoint leads out of it: a path with .., data in another file that its loader
would read. What is loaded would be under somebody else's control.
For: ONNX external data (onnx/external_data_helper.py), indexes with absolute paths.
""",
)
