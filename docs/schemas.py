"""The JSON Schemas of what commands print, as docs/make.py writes them into ckpt_tools/output/schemas/.

Every schema stands for itself: what several need is in the ``$defs`` of each. They say what is there now and take
what a later version adds, as docs/json.md asks of readers; tests/cli/test_schemas.py forbids anything more, so that a
new field has to be written down here. A field of one name means the same wherever nothing else is said.
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
FAILING: Schema = {"type": "integer", "minimum": 1}
OPERATION: Schema = {"type": ["string", "integer", "null"]}


def one_of(words: str, *more: str) -> Schema:
    """One of these texts."""
    return {"enum": [*words.split(), *more]}


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


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def record(names: str, /, **own: Schema) -> Schema:
    """An object with these fields, of which one with a ? may be missing; ``own`` says what a name means here."""
    words = names.split()
    properties = {name: own[name] if name in own else NAMES[name] for name in names.replace("?", "").split()}
    return {"type": "object", "required": [w for w in words if not w.endswith("?")], "properties": properties}


def some(names: str) -> Schema:
    """A list of objects that have these fields at least."""
    return array({"type": "object", **({"required": names.split()} if names else {})})


CODE: Schema = {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}
RULE: Schema = {"type": "string", "pattern": "^(tree|order|save|pair|choice)/[a-z-]+$"}
LEVEL = one_of("presence structure content values load")
FOUND = array(ref("finding_with_path"))
IN_FILE = array(ref("finding"))
NAMES: Schema = {
    name: schema
    for schema, names in (
        (
            TEXT,
            "message hint layout run role reason etag version provenance why fingerprint host process agent",
        ),
        (TEXT, "saves name dtype trust signature digest checkpoint key launcher job_from unclear sentence"),
        (
            TEXT,
            "what command title since effect answer reference protects template expected found fits output url",
        ),
        (TEXT, "seal"),
        (maybe(TEXT), "format node job tracker package example storage loader asked store_checksum"),
        (PATH, "path root directory a b"),
        (YES_NO, "substituted stopped unfinished dry_run applied same index reshardable skip events in_time"),
        (
            COUNT,
            "bytes bytes_read ok suspect broken unknown below_level unrecognised blocks blocks_read files",
        ),
        (
            COUNT,
            "files_read never attempts bytes_verified excluded length count nan inf denormal absurd zeros",
        ),
        (
            COUNT,
            "nbytes repeats damaged bare sealed would-seal already merged unreadable in-use matched total",
        ),
        (
            COUNT,
            "checkpoints_omitted starts_omitted files_omitted findings_omitted rejected_omitted protected",
        ),
        (COUNT, "changed reshaped added removed not_compared exit_code kept again bytes_total rate"),
        (INTEGER, "size mtime_ns value save_interval from to pid"),
        (NUMBER, "seconds mtime decided_at made_at time"),
        (SHARE, "coverage"),
        (SCALAR, "min max"),
        (
            maybe(COUNT),
            "rank source_rank world_size saved_world_size nodes offset ranks_present ranks_expected",
        ),
        (maybe(INTEGER), "step epoch epoch_base step_in_epoch generation resume_step lost_steps"),
        (maybe(NUMBER), "max_duration oldest budget lost_seconds saved_at"),
        (one_of("ok suspect broken unknown"), "verdict"),
        (LEVEL, "level"),
        (one_of("periodic dying-gasp release best"), "kind"),
        (one_of("error warning note"), "severity"),
        (CODE, "code"),
        (RULE, "rule"),
        (array(TEXT), "args limits suffixes variables arguments"),
        (array({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}), "ranks"),
        ({"const": True}, "follows"),
        (by_name(SCALAR), "metadata"),
        (by_name(TEXT), "env"),
        (FOUND, "findings warnings"),
        (array(ref("load")), "shared"),
        (array(ref("checkpoint")), "ahead"),
        (array(INTEGER), "shape"),
    )
    for name in names.split()
}
COUNTED = "count nan inf denormal absurd zeros"
FINDING = "code severity message offset hint rule? ranks? follows?"
CHECKPOINT = "step epoch epoch_base step_in_epoch kind layout run generation mtime path"
REGION = record("offset length what guard", offset=COUNT, guard=one_of("checksum structure unprotected"))
IN_REPORT = {"findings": IN_FILE, "values": record(COUNTED), "regions": array(REGION)}
FILE = "path format layout kind rank step epoch step_in_epoch size verdict level coverage metadata findings"
OF_FILE = {"layout": maybe(TEXT), "kind": maybe(NAMES["kind"]), **IN_REPORT}
DEFS: Schema = {
    "finding": record(FINDING),
    "finding_with_path": record(f"path {FINDING}", path=TEXT),
    "checkpoint": record(CHECKPOINT),
    "file": record(f"{FILE} values? regions?", **OF_FILE),
    "load": record(
        "role path size mtime_ns level coverage source_rank substituted node reason etag? version?"
    ),
    "known": record("value provenance"),
    "error": record("code message hint exit_code rule?", exit_code=FAILING),
}

SUMMARY = record(
    "files bytes bytes_read seconds ok suspect broken unknown below_level unrecognised", bytes=INTEGER
)
SAMPLE = record(
    "asked max_duration stopped bytes bytes_read blocks blocks_read files files_read never oldest"
)
VERIFIED = "root verdict level summary"
RESUME = record("path args env", path=maybe(PATH))
ROLLBACK = maybe(record("from to save_interval why"))
CANDIDATE = "step kind path"
PLAN = record(
    "root checkpoint resume_step resume rollback world_size saved_world_size topology ranks shared rejected ahead"
    " attempts bytes_verified warnings fingerprint candidates bytes_read budget below_level excluded state? decision?"
    " view? error? path? env?",
    checkpoint=maybe(ref("checkpoint")),
    resume=RESUME,
    rollback=ROLLBACK,
    state=maybe(one_of("resumable weights-only")),
    topology=by_name(ref("known")),
    ranks=array(record("rank files", rank=COUNT, files=array(ref("load")))),
    rejected=array(record(f"{CANDIDATE} findings")),
    candidates=array(
        record(
            f"{CANDIDATE} outcome",
            outcome={"enum": ["rejected", "chosen", "passed over", "not looked at"]},
        )
    ),
    decision=record("root decided_at host pid process agent job generation nodes asked saves?", asked=TEXT),
    view=record(
        "root checkpoint ranks shared", checkpoint=PATH, ranks=by_name(array(PATH)), shared=array(PATH)
    ),
    # In the decision of a job that has none there is no code.
    error=record("message hint exit_code code? rule?", exit_code=FAILING),
)
COMMANDS = array(record("what command"))
ADVICE = "verdict sentence hint commands"
START = record(
    f"root run {ADVICE} checkpoint resume_step state path arguments world_size ranks substituted rollback ahead warnings"
    " rejected rejected_omitted error",
    state=maybe(TEXT),
    root={"type": ["integer", "string"]},
    run=maybe(TEXT),
    commands=COMMANDS,
    checkpoint=maybe(COUNT),
    path=maybe(PATH),
    ranks=COUNT,
    substituted=COUNT,
    rollback=ROLLBACK,
    ahead=array(COUNT),
    warnings=some(""),
    rejected=array(
        record("checkpoint findings findings_omitted", checkpoint=maybe(COUNT), findings=some(""))
    ),
    error=maybe(record("message exit_code")),
)
COLUMNS = "path checkpoint rank place role format size mtime verdict level coverage codes"
REPORT = record(
    "made_at roots level verdict exit_code next summary starts checkpoints checkpoints_omitted starts_omitted timeline"
    " trackers coverage codes findings damage tensors files files_omitted",
    roots=array(PATH),
    next=record(ADVICE, commands=COMMANDS),
    summary=SUMMARY,
    starts=array(START),
    checkpoints=some("label verdict outcome findings"),
    timeline=record("rollbacks gaps", rollbacks=some(""), gaps=some("")),
    trackers=some("path says checkpoint findings"),
    coverage=array(record("format files bytes protected")),
    codes=array(record("code severity count title hint")),
    findings=some("code severity message path"),
    damage=some("file size findings regions"),
    tensors=record("total listed", listed=some("file name dtype magnitudes")),
    files=record(COLUMNS, **{name: {"type": "array"} for name in COLUMNS.split()}),
)
STATES = "sealed would-seal already merged broken unreadable unfinished in-use"
DIFFERENCES = record("same changed reshaped added removed not_compared", same=COUNT)
SIDE = maybe(record("path format size verdict findings", findings=IN_FILE))
TENSOR_SIDE = maybe(record("dtype shape nbytes digest", digest=maybe(TEXT)))
DIFFERENT = record(
    "name change a b bytes_same store_checksum tensors metadata",
    change=one_of("same changed added removed not-compared"),
    a=SIDE,
    b=SIDE,
    bytes_same=maybe(YES_NO),
    tensors=array(
        record(
            "name change a b largest_difference",
            change=one_of("same changed reshaped added removed not-compared"),
            a=TENSOR_SIDE,
            b=TENSOR_SIDE,
            largest_difference=SCALAR,
        )
    ),
    metadata=array(record("key change a b", change=one_of("changed added removed"), a=SCALAR, b=SCALAR)),
)
NUMBERS = "rank world_size local_rank local_world_size node nodes restart max_restarts"
DETECTED = record(
    f"launcher {NUMBERS} job job_from unclear hint skip",
    job=TEXT,
    **dict.fromkeys(NUMBERS.split(), maybe(ref("known"))),
)


DOCUMENTS: dict[str, tuple[str, Schema]] = {
    "verify": (
        "ckpt verify --json",
        record(
            f"{VERIFIED} files findings sample?", summary=SUMMARY, files=array(ref("file")), sample=SAMPLE
        ),
    ),
    "plan": (
        "ckpt plan --json, ckpt latest --json, ckpt hook --json and the file that CKPT_PLAN names",
        PLAN,
    ),
    "report": ("ckpt report --json, and inside its page", REPORT),
    "scan": (
        "ckpt ls --json",
        record(
            "root checkpoints findings bare unrecognised excluded",
            checkpoints=array(
                record(
                    f"{CHECKPOINT} unfinished ranks_present ranks_expected files size state?",
                    size=COUNT,
                    state=maybe(one_of("resumable weights-only partial")),
                )
            ),
        ),
    ),
    "show": (
        "ckpt show --json",
        record(
            "path format size verdict level coverage metadata findings signature tensors stats globals values? regions?"
            " sealed?",
            tensors=array(record("name dtype shape nbytes offset storage")),
            stats=array(record(f"name dtype {COUNTED} min max")),
            globals=array(record("name trust")),
            sealed=array(record("size digest name", size=COUNT)),
            **IN_REPORT,
        ),
    ),
    "stage": (
        "ckpt stage --json",
        record(
            "root checkpoint directory? resume_step? resume? ranks? shared? env? files? fetched? removed?",
            root=TEXT,
            checkpoint=maybe(record(CHECKPOINT)),
            resume=RESUME,
            ranks=array(record("rank files", rank=COUNT, files=array(PATH))),
            shared=array(PATH),
            files=array(
                record(
                    "path url size etag version level",
                    size=COUNT,
                    level={"enum": ["", "presence", "structure", "content"]},
                )
            ),
            fetched=record("files bytes"),
            removed=array(TEXT),
        ),
    ),
    "sealing": (
        "ckpt seal --json",
        record(
            "roots dry_run summary checkpoints findings",
            roots=array(PATH),
            summary=record(f"{STATES} bytes bytes_read seconds", unfinished=COUNT),
            checkpoints=array(
                record("path seal state checkpoint files bytes findings", seal=PATH, state=one_of(STATES))
            ),
        ),
    ),
    "changes": (
        "ckpt repair, quarantine, prune, pin, undo and ls --quarantine with --json",
        record(
            "command root applied operation changes findings",
            command=one_of("repair quarantine restore prune pin undo ls"),
            operation=OPERATION,
            changes=array(record("path state why to checkpoint files bytes", state=TEXT, to=maybe(PATH))),
        ),
    ),
    "history": (
        "ckpt plan --history --json",
        record(
            "root repeats damaged starts",
            starts=array(
                record(
                    "decided_at path step kind job host lost_steps lost_seconds passed",
                    path=maybe(PATH),
                    kind=maybe(NAMES["kind"]),
                    host=maybe(TEXT),
                    passed=array(record("path step codes", codes=array(CODE))),
                )
            ),
        ),
    ),
    "diff": (
        "ckpt diff --json",
        record(
            "a b level same summary files findings",
            level=one_of("structure content values"),
            summary=record("files tensors bytes_read seconds", files=DIFFERENCES, tensors=DIFFERENCES),
            files=array(DIFFERENT),
        ),
    ),
    "explain": (
        "ckpt explain --json",
        record(
            "explain rule?",
            explain=array(record("code severity title hint since rules?", rules=array(RULE))),
            rule=record("id effect answer why", id=RULE),
        ),
    ),
    "formats": (
        "ckpt formats --json",
        record(
            "formats",
            formats=array(
                record(
                    "name suffixes names levels index loader protects limits reference package",
                    names=maybe(TEXT),
                    levels=array(LEVEL),
                )
            ),
        ),
    ),
    "layouts": (
        "ckpt layouts --json",
        record(
            "layouts",
            layouts=array(
                record(
                    "name title pieces tracker reshardable limits reference package",
                    pieces=array(record("name role template")),
                )
            ),
        ),
    ),
    "layouts-check": (
        "ckpt layouts --check --json",
        record(
            "layouts-check",
            **{
                "layouts-check": array(
                    record(
                        "layout template matched example near_misses",
                        near_misses=array(record("path fits expected found", path=TEXT)),
                    )
                )
            },
        ),
    ),
    "launchers": (
        "ckpt launchers --json",
        record(
            "launchers detected",
            launchers=array(record("name variables rank world_size unclear reference package")),
            detected=maybe(DETECTED),
        ),
    ),
    "error": (
        "any command with --json that fails before it has an answer",
        record(
            "error verdict files",
            error=ref("error"),
            verdict={"const": "unknown"},
            files={"type": "array", "maxItems": 0},
        ),
    ),
}
"""By the name in ``schema``: which commands print it, and its fields behind ``schema`` and ``tool_version``."""


def event(name: str, names: str, /, **own: Schema) -> Schema:
    """One type of line of ``ckpt watch``."""
    head = {"schema": {"const": "ckpt-tools/watch/v1"}, "type": {"const": name}, "root": maybe(PATH)}
    return record(f"schema type time root {names}", **head, **own)


STATE = one_of("good suspect bad unknown")
LAST_GOOD = maybe(record("path step saved_at"))
PLANNED = maybe(record("exit_code path step why?", exit_code=maybe(COUNT), path=maybe(PATH)))
EVENTS = [
    event(
        "started",
        "roots state_dirs process events metrics_port",
        roots=array(PATH),
        state_dirs=array(PATH),
        process=INTEGER,
        metrics_port=maybe(COUNT),
    ),
    event(
        "checkpoint",
        "path step epoch step_in_epoch layout run kind state reason files bytes bytes_read seconds findings seal?",
        state=STATE,
        reason=one_of("new changed scrub retry"),
    ),
    event("gone", "path step state", state=TEXT),
    event(
        "pass",
        "checkpoints last_good plan tracker_agrees not_checked",
        checkpoints=by_name(COUNT),
        not_checked=by_name(COUNT),
        last_good=LAST_GOOD,
        plan=PLANNED,
        tracker_agrees=maybe(YES_NO),
    ),
    event("restart", "path step decided_at again", path=maybe(PATH)),
    event(
        "hook",
        "path on exit_code in_time seconds output",
        on=one_of("good bad"),
        exit_code=maybe(INTEGER),
    ),
    event("problem", "code message findings?"),
    event("stopped", "why"),
]
LINES: dict[str, tuple[str, list[Schema]]] = {
    "watch": ("a line of ckpt watch", EVENTS),
    "verify-line": (
        "a line of ckpt verify --format jsonl",
        [
            record(f"type {FILE} values? regions?", type={"const": "file"}, **OF_FILE),
            record(f"type path {FINDING}", type={"const": "finding"}, path=TEXT),
            record(
                f"type schema tool_version {VERIFIED} sample?",
                type={"const": "summary"},
                schema={"const": "ckpt-tools/verify/v1"},
                tool_version=TEXT,
                summary=SUMMARY,
                sample=SAMPLE,
            ),
        ],
    ),
    "progress-line": (
        "a line of --progress json",
        [
            record(
                "type state bytes bytes_total files files_total file seconds rate",
                type={"const": "progress"},
                state=one_of("started reading done stopped"),
                files_total=maybe(COUNT),
                file=maybe(TEXT),
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
