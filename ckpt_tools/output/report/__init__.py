"""Results -> one page of HTML that needs no network; here that of one command's answer (--format html)."""

from __future__ import annotations

from ckpt_tools.errors import BY_EXIT_CODE, CkptError
from ckpt_tools.model.answers import Verification
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.output.failure import Failure
from ckpt_tools.output.page import View
from ckpt_tools.output.report import page
from ckpt_tools.output.report.advice import Gathered, Start
from ckpt_tools.output.report.data import document


def render(answer: Verification | LoadPlan | Failure, view: View) -> str:
    if isinstance(answer, Verification):
        given = Gathered((answer.root,), view.now, verification=answer)
    elif isinstance(answer, LoadPlan):
        given = Gathered((answer.root,), view.now, starts=(Start(answer.root, None, answer),))
    else:
        error = BY_EXIT_CODE.get(answer.exit_code, CkptError)(answer.message, answer.hint, answer.plan)
        root = answer.plan.root if answer.plan else ""
        start = Start(root, None, answer.plan, error)
        given = Gathered((root,) if root else (), view.now, starts=(start,), exit_code=answer.exit_code)
    return page.render(document(given))
