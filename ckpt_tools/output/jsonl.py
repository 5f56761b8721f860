"""JSON lines: a verification, with its summary last, and what ``ckpt watch`` sees."""

from __future__ import annotations

from ckpt_tools.model.answers import Event, Verification
from ckpt_tools.output import json
from ckpt_tools.output.failure import Failure


def render(result: Verification | Failure, _view: object = None) -> str:
    """Return an object per line, each with a ``type``. Without a summary line the text was cut short."""
    if isinstance(result, Failure):
        return f"{json.line(json.failed(result))}\n"
    lines: list[json.Object] = [{"type": "file", **json.file(entry)} for entry in result.files]
    lines += [{"type": "finding", **json.finding(f, across=True)} for f in result.findings]
    lines.append({"type": "summary", **json.head(result)})
    return "".join(f"{json.line(line)}\n" for line in lines)


def line(event: Event) -> str:
    about = {
        "schema": "ckpt-tools/watch/v1",
        "type": event.type,
        "time": round(event.time, 3),
        "root": event.root,
        **event.fields,
    }
    if isinstance(path := about.get("path"), str):
        about["path"] = json.absolute(path)
    if event.findings or event.type == "checkpoint":
        about["findings"] = json.list_findings(event.findings)
    return f"{json.line(about)}\n"
