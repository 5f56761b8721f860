"""The JSON Schemas of what commands print, as docs/make.py writes them into ckpt_tools/output/schemas/.

Every schema stands for itself: what several need is in the ``$defs`` of each. They say what is there now and take
what a later version adds, as docs/json.md asks of readers; tests/cli/test_schemas.py forbids anything more, so that a
new field has to be written down here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
PATH: Schema = {"type": "string", "description": "An absolute path."}
YES_NO: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
TEXTS: Schema = {"type": "array", "items": TEXT}


def one_of(*words: str | None) -> Schema:
    """One of these texts; with None it may be null."""
    return {"enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """The same, or null: not known, or not applicable."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def by_name(values: Schema) -> Schema:
    """An object whose names data chooses."""
    return {"type": "object", "additionalProperties": values}


def record(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these fields; those of ``optional`` may be missing."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


VERDICT = one_of("ok", "suspect", "broken", "unknown")
LEVEL = one_of("presence", "structure", "content", "values", "load")
KIND = one_of("periodic", "dying-gasp", "release", "best")
SEVERITY = one_of("error", "warning", "note")
CODE: Schema = {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}
RANKS: Schema = array({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2})
OBSERVED = {"code": CODE, "severity": SEVERITY, "message": TEXT, "offset": maybe(COUNT), "hint": TEXT}
RULE: Schema = {"type": "string", "pattern": "^(tree|order|save|pair|choice)/[a-z-]+$"}
FOLLOWING = {"rule": RULE, "ranks": RANKS, "follows": {"const": True}}
COUNTED = dict.fromkeys(("count", "nan", "inf", "denormal", "absurd", "zeros"), COUNT)
PLACE = {"step": maybe(INTEGER), "epoch": maybe(INTEGER), "step_in_epoch": maybe(INTEGER)}
CHECKPOINT = {
    "step": maybe(INTEGER),
    "epoch": maybe(INTEGER),
    "epoch_base": maybe(INTEGER),
    "step_in_epoch": maybe(INTEGER),
    "kind": KIND,
    "layout": TEXT,
    "run": TEXT,
    "generation": maybe(INTEGER),
    "mtime": NUMBER,
    "path": PATH,
}
REPORTED = {
    "size": INTEGER,
    "verdict": VERDICT,
    "level": LEVEL,
    "coverage": SHARE,
    "metadata": by_name(SCALAR),
    "findings": array(ref("finding")),
}
MORE_REPORTED = {
    "values": record(COUNTED),
    "regions": array(
        record(
            {
                "offset": COUNT,
                "length": COUNT,
                "what": TEXT,
                "guard": one_of("checksum", "structure", "unprotected"),
            }
        )
    ),
}
KNOWN = record({"value": INTEGER, "provenance": TEXT})

DEFS: Schema = {
    "finding": record(OBSERVED, FOLLOWING),
    "finding_with_path": record({"path": TEXT, **OBSERVED}, FOLLOWING),
    "checkpoint": record(CHECKPOINT),
    "file": record(
        {
            "path": PATH,
            "format": maybe(TEXT),
            "layout": maybe(TEXT),
            "kind": maybe(KIND),
            "rank": maybe(COUNT),
            **PLACE,
            **REPORTED,
        },
        MORE_REPORTED,
    ),
    "load": record(
        {
            "role": TEXT,
            "path": PATH,
            "size": INTEGER,
            "mtime_ns": INTEGER,
            "level": LEVEL,
            "coverage": SHARE,
            "source_rank": maybe(COUNT),
            "substituted": YES_NO,
            "node": maybe(TEXT),
            "reason": TEXT,
        },
        {"etag": TEXT, "version": TEXT},
    ),
    "known": KNOWN,
    "error": record(
        {"code": CODE, "message": TEXT, "hint": TEXT, "exit_code": {"type": "integer", "minimum": 1}},
        {"rule": RULE},
    ),
}
FOUND = array(ref("finding_with_path"))

SUMMARY = record(
    {
        "files": COUNT,
        "bytes": INTEGER,
        "bytes_read": COUNT,
        "seconds": NUMBER,
        **dict.fromkeys(("ok", "suspect", "broken", "unknown", "below_level", "unrecognised"), COUNT),
    }
)
SAMPLE = record(
    {
        "asked": maybe(TEXT),
        "max_duration": maybe(NUMBER),
        "stopped": YES_NO,
        **dict.fromkeys(
            ("bytes", "bytes_read", "blocks", "blocks_read", "files", "files_read", "never"), COUNT
        ),
        "oldest": maybe(NUMBER),
    }
)
VERIFIED = {"root": PATH, "verdict": VERDICT, "level": LEVEL, "summary": SUMMARY}

PLAN = {
    "root": PATH,
    "checkpoint": maybe(ref("checkpoint")),
    "resume_step": maybe(INTEGER),
    "resume": record({"path": maybe(PATH), "args": TEXTS, "env": by_name(TEXT)}),
    "rollback": maybe(record({"from": INTEGER, "to": INTEGER, "save_interval": INTEGER, "why": TEXT})),
    "world_size": maybe(COUNT),
    "saved_world_size": maybe(COUNT),
    "topology": by_name(ref("known")),
    "ranks": array(record({"rank": COUNT, "files": array(ref("load"))})),
    "shared": array(ref("load")),
    "rejected": array(record({"step": maybe(INTEGER), "kind": KIND, "path": PATH, "findings": FOUND})),
    "ahead": array(ref("checkpoint")),
    "attempts": COUNT,
    "bytes_verified": COUNT,
    "warnings": FOUND,
    "fingerprint": TEXT,
    "candidates": array(
        record(
            {
                "step": maybe(INTEGER),
                "kind": KIND,
                "path": PATH,
                "outcome": one_of("rejected", "chosen", "passed over", "not looked at"),
            }
        )
    ),
    "bytes_read": COUNT,
    "budget": maybe(NUMBER),
    "below_level": COUNT,
    "excluded": COUNT,
}
DECISION = record(
    {
        "root": PATH,
        "decided_at": NUMBER,
        "host": TEXT,
        "pid": INTEGER,
        "process": TEXT,
        "agent": TEXT,
        "job": maybe(TEXT),
        "generation": maybe(INTEGER),
        "nodes": maybe(COUNT),
        "asked": TEXT,
    },
    {"saves": TEXT},
)
FAILED = record(
    {"message": TEXT, "hint": TEXT, "exit_code": {"type": "integer", "minimum": 1}},
    {"code": CODE, "rule": RULE},
)
"""In the decision of a job that has none there is no code."""
VIEW = record({"root": PATH, "checkpoint": PATH, "ranks": by_name(array(PATH)), "shared": array(PATH)})

LISTED = record(
    {
        **CHECKPOINT,
        "unfinished": YES_NO,
        "ranks_present": maybe(COUNT),
        "ranks_expected": maybe(COUNT),
        "files": COUNT,
        "size": COUNT,
    }
)
TENSOR = record(
    {
        "name": TEXT,
        "dtype": TEXT,
        "shape": array(INTEGER),
        "nbytes": COUNT,
        "offset": maybe(COUNT),
        "storage": maybe(TEXT),
    }
)
STATS = record({"name": TEXT, "dtype": TEXT, **COUNTED, "min": SCALAR, "max": SCALAR})
SHOWN = {
    "path": PATH,
    "format": maybe(TEXT),
    **REPORTED,
    "signature": TEXT,
    "tensors": array(TENSOR),
    "stats": array(STATS),
    "globals": array(record({"name": TEXT, "trust": TEXT})),
}
STAGED = {
    "directory": PATH,
    "resume_step": maybe(INTEGER),
    "resume": record({"path": maybe(PATH), "args": TEXTS, "env": by_name(TEXT)}),
    "ranks": array(record({"rank": COUNT, "files": array(PATH)})),
    "shared": array(PATH),
    "env": by_name(TEXT),
    "files": array(
        record(
            {"path": PATH, "url": TEXT, "size": COUNT, "etag": TEXT, "version": TEXT}
            | {"level": one_of("", "presence", "structure", "content")}
        )
    ),
    "fetched": record({"files": COUNT, "bytes": COUNT}),
    "removed": TEXTS,
}
SEALING = {
    "roots": array(PATH),
    "dry_run": YES_NO,
    "summary": record(
        {
            **dict.fromkeys(
                (
                    *("sealed", "would-seal", "already", "merged", "broken", "unreadable", "unfinished"),
                    *("in-use", "bytes", "bytes_read"),
                ),
                COUNT,
            ),
            "seconds": NUMBER,
        }
    ),
    "checkpoints": array(
        record(
            {
                "path": PATH,
                "seal": PATH,
                "state": one_of(
                    *("sealed", "would-seal", "already", "merged", "broken", "unreadable", "unfinished"),
                    "in-use",
                ),
                "checkpoint": TEXT,
                "files": COUNT,
                "bytes": COUNT,
                "findings": FOUND,
            }
        )
    ),
    "findings": FOUND,
}
CHANGES = {
    "command": one_of("repair", "quarantine", "restore", "prune", "pin", "undo", "ls"),
    "root": PATH,
    "applied": YES_NO,
    "operation": {"type": ["string", "integer", "null"]},
    "changes": array(
        record(
            {
                "path": PATH,
                "state": TEXT,
                "why": TEXT,
                "to": maybe(PATH),
                "checkpoint": TEXT,
                "files": COUNT,
                "bytes": COUNT,
            }
        )
    ),
    "findings": FOUND,
}
HISTORY = {
    "root": PATH,
    "repeats": COUNT,
    "damaged": COUNT,
    "starts": array(
        record(
            {
                "decided_at": NUMBER,
                "path": maybe(PATH),
                "step": maybe(INTEGER),
                "kind": maybe(KIND),
                "job": maybe(TEXT),
                "host": maybe(TEXT),
                "lost_steps": maybe(INTEGER),
                "lost_seconds": maybe(NUMBER),
                "passed": array(record({"path": PATH, "step": maybe(INTEGER), "codes": array(CODE)})),
            }
        )
    ),
}
SIDE = maybe(
    record(
        {
            "path": PATH,
            "format": maybe(TEXT),
            "size": INTEGER,
            "verdict": VERDICT,
            "findings": array(ref("finding")),
        }
    )
)
TENSOR_SIDE = maybe(record({"dtype": TEXT, "shape": array(INTEGER), "nbytes": COUNT, "digest": maybe(TEXT)}))
TENSOR_CHANGE = one_of("same", "changed", "reshaped", "added", "removed", "not-compared")
DIFFERENCES = record(
    dict.fromkeys(("same", "changed", "reshaped", "added", "removed", "not_compared"), COUNT)
)
DIFF = {
    "a": PATH,
    "b": PATH,
    "level": one_of("structure", "content"),
    "same": YES_NO,
    "summary": record({"files": DIFFERENCES, "tensors": DIFFERENCES, "bytes_read": COUNT, "seconds": NUMBER}),
    "files": array(
        record(
            {
                "name": TEXT,
                "change": one_of("same", "changed", "added", "removed", "not-compared"),
                "a": SIDE,
                "b": SIDE,
                "bytes_same": maybe(YES_NO),
                "store_checksum": maybe(TEXT),
                "tensors": array(
                    record({"name": TEXT, "change": TENSOR_CHANGE, "a": TENSOR_SIDE, "b": TENSOR_SIDE})
                ),
                "metadata": array(
                    record(
                        {
                            "key": TEXT,
                            "change": one_of("changed", "added", "removed"),
                            "a": SCALAR,
                            "b": SCALAR,
                        }
                    )
                ),
            }
        )
    ),
    "findings": FOUND,
}
NUMBERS = (
    *("rank", "world_size", "local_rank", "local_world_size", "node", "nodes"),
    *("restart", "max_restarts"),
)
DETECTED = record(
    {
        "launcher": TEXT,
        **dict.fromkeys(NUMBERS, maybe(ref("known"))),
        "job": TEXT,
        "job_from": TEXT,
        "unclear": TEXT,
        "hint": TEXT,
        "skip": YES_NO,
    }
)
PACKAGE = {"package": maybe(TEXT)}

COMMANDS = array(record({"what": TEXT, "command": TEXT}))
ADVICE = {"verdict": VERDICT, "sentence": TEXT, "hint": TEXT, "commands": COMMANDS}
PLACED = maybe(COUNT)
COLUMNS = (
    "path",
    "checkpoint",
    "rank",
    "place",
    "role",
    "format",
    "size",
    "mtime",
    "verdict",
    "level",
    "coverage",
)
REPORT = {
    "made_at": NUMBER,
    "roots": array(PATH),
    "level": LEVEL,
    "verdict": VERDICT,
    "exit_code": COUNT,
    "next": record(ADVICE),
    "summary": SUMMARY,
    "starts": array(
        record(
            {
                "root": {"type": ["integer", "string"]},
                "run": maybe(TEXT),
                **ADVICE,
                "checkpoint": PLACED,
                "resume_step": maybe(INTEGER),
                "path": maybe(PATH),
                "arguments": TEXTS,
                "world_size": maybe(COUNT),
                "ranks": COUNT,
                "substituted": COUNT,
                "rollback": PLAN["rollback"],
                "ahead": array(COUNT),
                "warnings": array({"type": "object"}),
                "rejected": array(
                    record(
                        {
                            "checkpoint": PLACED,
                            "findings": array({"type": "object"}),
                            "findings_omitted": COUNT,
                        }
                    )
                ),
                "rejected_omitted": COUNT,
                "error": maybe(record({"message": TEXT, "exit_code": COUNT})),
            }
        )
    ),
    "checkpoints": array({"type": "object", "required": ["label", "verdict", "outcome", "findings"]}),
    "checkpoints_omitted": COUNT,
    "starts_omitted": COUNT,
    "timeline": record({"rollbacks": array({"type": "object"}), "gaps": array({"type": "object"})}),
    "trackers": array({"type": "object", "required": ["path", "says", "checkpoint", "findings"]}),
    "coverage": array(record({"format": maybe(TEXT), "files": COUNT, "bytes": COUNT, "protected": COUNT})),
    "codes": array(record({"code": CODE, "severity": SEVERITY, "count": COUNT, "title": TEXT, "hint": TEXT})),
    "findings": array({"type": "object", "required": ["code", "severity", "message", "path"]}),
    "damage": array({"type": "object", "required": ["file", "size", "findings", "regions"]}),
    "tensors": record(
        {
            "total": COUNT,
            "listed": array({"type": "object", "required": ["file", "name", "dtype", "magnitudes"]}),
        }
    ),
    "files": record({key: {"type": "array"} for key in (*COLUMNS, "codes")}),
    "files_omitted": COUNT,
}


DOCUMENTS: dict[str, tuple[str, Schema]] = {
    "verify": (
        "ckpt verify --json",
        record({**VERIFIED, "files": array(ref("file")), "findings": FOUND}, {"sample": SAMPLE}),
    ),
    "plan": (
        "ckpt plan --json, ckpt latest --json, ckpt hook --json and the file that CKPT_PLAN names",
        record(
            PLAN,
            {"decision": DECISION, "view": VIEW, "error": FAILED, "path": PATH, "env": by_name(TEXT)},
        ),
    ),
    "report": ("ckpt report --json, and inside its page", record(REPORT)),
    "scan": (
        "ckpt ls --json",
        record(
            {
                "root": PATH,
                "checkpoints": array(LISTED),
                "findings": FOUND,
                "bare": COUNT,
                "unrecognised": COUNT,
                "excluded": COUNT,
            }
        ),
    ),
    "show": (
        "ckpt show --json",
        record(
            SHOWN,
            {**MORE_REPORTED, "sealed": array(record({"size": COUNT, "digest": TEXT, "name": TEXT}))},
        ),
    ),
    "stage": ("ckpt stage --json", record({"root": TEXT, "checkpoint": maybe(record(CHECKPOINT))}, STAGED)),
    "sealing": ("ckpt seal --json", record(SEALING)),
    "changes": ("ckpt repair, quarantine, prune, pin, undo and ls --quarantine with --json", record(CHANGES)),
    "history": ("ckpt plan --history --json", record(HISTORY)),
    "diff": ("ckpt diff --json", record(DIFF)),
    "explain": (
        "ckpt explain --json",
        record(
            {
                "explain": array(
                    record(
                        {"code": CODE, "severity": SEVERITY, "title": TEXT, "hint": TEXT, "since": TEXT},
                        {"rules": array(RULE)},
                    )
                )
            },
            {"rule": record({"id": RULE, "effect": TEXT, "answer": TEXT, "why": TEXT})},
        ),
    ),
    "formats": (
        "ckpt formats --json",
        record(
            {
                "formats": array(
                    record(
                        {
                            "name": TEXT,
                            "suffixes": TEXTS,
                            "names": maybe(TEXT),
                            "levels": array(LEVEL),
                            "index": YES_NO,
                            "loader": maybe(TEXT),
                            "protects": TEXT,
                            "limits": TEXTS,
                            "reference": TEXT,
                            **PACKAGE,
                        }
                    )
                )
            }
        ),
    ),
    "layouts": (
        "ckpt layouts --json",
        record(
            {
                "layouts": array(
                    record(
                        {
                            "name": TEXT,
                            "title": TEXT,
                            "pieces": array(record({"name": TEXT, "role": TEXT, "template": TEXT})),
                            "tracker": maybe(TEXT),
                            "reshardable": YES_NO,
                            "limits": TEXTS,
                            "reference": TEXT,
                            **PACKAGE,
                        }
                    )
                )
            }
        ),
    ),
    "layouts-check": (
        "ckpt layouts --check --json",
        record(
            {
                "layouts-check": array(
                    record(
                        {
                            "layout": TEXT,
                            "template": TEXT,
                            "matched": COUNT,
                            "example": maybe(TEXT),
                            "near_misses": array(
                                record({"path": TEXT, "fits": TEXT, "expected": TEXT, "found": TEXT})
                            ),
                        }
                    )
                )
            }
        ),
    ),
    "launchers": (
        "ckpt launchers --json",
        record(
            {
                "launchers": array(
                    record(
                        {
                            "name": TEXT,
                            "variables": TEXTS,
                            "rank": maybe(COUNT),
                            "world_size": maybe(COUNT),
                            "unclear": TEXT,
                            "reference": TEXT,
                            **PACKAGE,
                        }
                    )
                ),
                "detected": maybe(DETECTED),
            }
        ),
    ),
    "error": (
        "any command with --json that fails before it has an answer",
        record(
            {
                "error": ref("error"),
                "verdict": {"const": "unknown"},
                "files": {"type": "array", "maxItems": 0},
            }
        ),
    ),
}
"""By the name in ``schema``: which commands print it, and its fields behind ``schema`` and ``tool_version``."""


STATE = one_of("good", "suspect", "bad", "unknown")
PLANNED = record({"exit_code": maybe(COUNT), "path": maybe(PATH), "step": maybe(INTEGER)}, {"why": TEXT})
EVENTS: dict[str, tuple[Schema, Schema]] = {
    "started": (
        {
            "roots": array(PATH),
            "state_dirs": array(PATH),
            "process": INTEGER,
            "events": YES_NO,
            "metrics_port": maybe(COUNT),
        },
        {},
    ),
    "checkpoint": (
        {
            "path": PATH,
            **PLACE,
            "layout": TEXT,
            "run": TEXT,
            "kind": KIND,
            "state": STATE,
            "reason": one_of("new", "changed", "scrub", "retry"),
            **dict.fromkeys(("files", "bytes", "bytes_read"), COUNT),
            "seconds": NUMBER,
            "findings": FOUND,
        },
        {"seal": TEXT},
    ),
    "gone": ({"path": PATH, "step": maybe(INTEGER), "state": TEXT}, {}),
    "pass": (
        {
            "checkpoints": by_name(COUNT),
            "last_good": maybe(record({"path": PATH, "step": maybe(INTEGER), "saved_at": maybe(NUMBER)})),
            "plan": maybe(PLANNED),
            "tracker_agrees": maybe(YES_NO),
        },
        {},
    ),
    "restart": (
        {"path": maybe(PATH), "step": maybe(INTEGER), "decided_at": NUMBER, "again": COUNT},
        {},
    ),
    "hook": (
        {
            "path": PATH,
            "on": one_of("good", "bad"),
            "exit_code": maybe(INTEGER),
            "in_time": YES_NO,
            "seconds": NUMBER,
            "output": TEXT,
        },
        {},
    ),
    "pruned": (
        {
            "applied": YES_NO,
            "operation": {"type": ["string", "integer", "null"]},
            "removed": array(
                record({"path": PATH, "checkpoint": TEXT, "files": COUNT, "bytes": COUNT, "why": TEXT})
            ),
            "kept": COUNT,
        },
        {},
    ),
    "problem": ({"code": CODE, "message": TEXT}, {"findings": FOUND}),
    "stopped": ({"why": TEXT}, {}),
}


def event(name: str) -> Schema:
    """One type of line of ``ckpt watch``."""
    required, optional = EVENTS[name]
    head = {
        "schema": {"const": "ckpt-tools/watch/v1"},
        "type": {"const": name},
        "time": NUMBER,
        "root": maybe(PATH),
    }
    return record({**head, **required}, optional)


FILE_LINE = record(
    {"type": {"const": "file"}, **{key: DEFS["file"]["properties"][key] for key in DEFS["file"]["required"]}},
    MORE_REPORTED,
)
LINES: dict[str, tuple[str, list[Schema]]] = {
    "watch": ("a line of ckpt watch", [event(name) for name in EVENTS]),
    "verify-line": (
        "a line of ckpt verify --format jsonl",
        [
            FILE_LINE,
            record({"type": {"const": "finding"}, "path": TEXT, **OBSERVED}, FOLLOWING),
            record(
                {
                    "type": {"const": "summary"},
                    "schema": {"const": "ckpt-tools/verify/v1"},
                    "tool_version": TEXT,
                    **VERIFIED,
                },
                {"sample": SAMPLE},
            ),
        ],
    ),
    "progress-line": (
        "a line of --progress json",
        [
            record(
                {
                    "type": {"const": "progress"},
                    "state": one_of("started", "reading", "done", "stopped"),
                    "bytes": COUNT,
                    "bytes_total": COUNT,
                    "files": COUNT,
                    "files_total": maybe(COUNT),
                    "file": maybe(TEXT),
                    "seconds": NUMBER,
                    "rate": COUNT,
                }
            )
        ],
    ),
}
"""Of what is printed line by line: an object of one of these kinds."""


def document(name: str) -> str:
    """A schema as the text of its file."""
    head: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ckpt-tools:{name}:v1",
        "title": f"ckpt-tools/{name}/v1",
    }
    if name in LINES:
        about, kinds = LINES[name]
        return finished({**head, "description": f"{about}. {ADDING}", "oneOf": kinds})
    about, body = DOCUMENTS[name]
    own = {"schema": {"const": f"ckpt-tools/{name}/v1"}, "tool_version": TEXT}
    return finished(
        {
            **head,
            "description": f"{about}. {ADDING}",
            "type": "object",
            "required": [*own, *body["required"]],
            "properties": {**own, **body["properties"]},
        }
    )


ADDING = "Later versions of ckpt-tools may add fields."


def schema_pages(home: Path) -> dict[Path, Callable[[], str]]:
    """The files of all schemas, and what each holds."""
    return {home / f"{name}-v1.json": partial(document, name) for name in (*DOCUMENTS, *LINES)}


def finished(schema: Schema) -> str:
    """With the definitions that it uses, and those that these use."""
    used: dict[str, Schema] = {}
    while missing := set(_named({**schema, "$defs": used})) - set(used):
        used |= {name: DEFS[name] for name in missing}
    whole = {**schema, **({"$defs": {name: DEFS[name] for name in DEFS if name in used}} if used else {})}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _named(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rpartition("/")[2]] if isinstance(value.get("$ref"), str) else []
        return own + [name for item in value.values() for name in _named(item)]
    if isinstance(value, list):
        return [name for item in value for name in _named(item)]
    return []
