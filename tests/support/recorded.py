"""What ckpt answered about the trees of fixtures/layouts, as recorded below fixtures/answers."""

from __future__ import annotations

import json
import lzma
from typing import Any

from places import FIXTURES

RECORDED: dict[str, Any] = {
    question: answer
    for path in sorted((FIXTURES / "answers/layouts").glob("*.xz"))
    for question, answer in json.loads(lzma.decompress(path.read_bytes())).items()
}
"""By the text of the question."""
PLANNED = ": ckpt plan @ --json"
TREES = sorted(
    question.removesuffix(PLANNED)
    for question, recorded in RECORDED.items()
    if question.endswith(PLANNED) and recorded["answer"].get("checkpoint") is not None
)
"""Those of which a plan chooses a checkpoint without a question: ``layouts/megatron/tp/tree``."""
