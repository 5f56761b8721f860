"""``save/load-refused``."""

from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.rule import Effect, Rule

RULE = Rule(
    id="save/load-refused",
    code="load-failed",
    more=("not-loaded",),
    effect=Effect.REJECT,
    needs=Level.LOAD,
    answer="restore the file; --level content leaves the loader out",
    why="""\
At level load the framework's own loader was asked, and it refused the file or was stopped. What it
cannot load, the job cannot load.
For: versions of torch that read less than the one that wrote the file.
""",
)
