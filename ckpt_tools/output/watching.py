"""What ``ckpt watch`` sees -> JSON lines."""

from __future__ import annotations

from ckpt_tools.model.answers import Event
from ckpt_tools.output import json


def line(event: Event) -> str:
    """One event of the schema ckpt-tools/watch/v1 (docs/json.md), with its line break."""
    fields = {
        name: json.absolute(v) if name == "path" and isinstance(v, str) else v
        for name, v in event.fields.items()
    }
    of_checkpoint = event.type == "checkpoint"
    found = [json.finding(f, across=True) for f in event.findings]
    return (
        json.line(
            {
                "schema": "ckpt-tools/watch/v1",
                "type": event.type,
                "time": round(event.time, 3),
                "root": event.root,
                **fields,
                **({"findings": found} if found or of_checkpoint else {}),
            }
        )
        + "\n"
    )
