"""The JSON Schema of seals says what is written, and refuses what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace
from places import FIXTURES, ROOT

from ckpt_tools.formats.common import json_text
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.seals import document
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile

SCHEMA = json.loads((ROOT / "docs/seal-v1.schema.json").read_text())
GOOD = sorted((FIXTURES / "formats/seal/good").iterdir())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.name)
def test_real_seals_are_valid(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))


def test_the_schema_has_every_field_that_a_seal_can_have() -> None:
    file = SealedFile("a/b", 5, "0" * 64, "1" * 8, "2" * 8, "3" * 32, "4" * 8, "5" * 8)
    more = {"counters": {"step": 3, "lr": 0.5}, "also": {"md5": "0" * 32}, "tensors": {"w": "1" * 32}}
    full = replace(file, **more)
    checkpoint = SealedCheckpoint("megatron", ".", "periodic", 10, 1, 2, 4, {"tp": 2})
    seal = Seal("0.1.0", checkpoint, "sha256", (file, full), Fragment(0, 2), ("c",))
    value = json.loads(document.text(seal))
    VALIDATOR.validate(value)
    assert value.keys() == SCHEMA["properties"].keys() == set(SCHEMA["required"])
    assert value["files"][1].keys() == SCHEMA["$defs"]["file"]["properties"].keys()
    assert value["checkpoint"].keys() == SCHEMA["properties"]["checkpoint"]["properties"].keys()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("schema", "ckpt-tools/seal/v2"),
        ("chunk_size", 1),
        ("algorithm", "crc8"),
        ("files", {}),
        ("self", "0"),
        ("fragment", {"rank": -1, "world_size": 2}),
        ("files", [{"path": "a", "size": -1, "digest": "0" * 32, "crc32": "0" * 8, "crc32c": "0" * 8}]),
        ("files", [{"path": "a", "size": 0, "digest": "x", "crc32": "0" * 8, "crc32c": "0" * 8}]),
    ],
)
def test_what_no_reader_takes_is_not_valid(field: str, wrong: object) -> None:
    value = json.loads(GOOD[0].read_text()) | {field: wrong}
    assert not VALIDATOR.is_valid(value)


def many(n: int) -> Seal:
    files = (
        SealedFile(f"c/{i}", 5, "0" * 32, "1" * 8, "2" * 8, "3" * 32, "4" * 8, "5" * 8) for i in range(n)
    )
    return Seal("0.1.0", SealedCheckpoint(), "xxh3", tuple(files))


@pytest.mark.slow
def test_a_seal_of_many_files_is_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as one value it would take more memory than JSON may."""
    seal = many(6000)
    data = document.text(seal)
    monkeypatch.setattr(json_text, "MAX_MEMORY", 9 << 20)
    assert replace(document.parse_seal(data), digest="") == seal
    with pytest.raises(Damage, match="more than 9 MiB of memory"):
        document.parse_seal(data.replace(b"[\n", b"[", 1))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_seal_of_few_files_is_read_as_well(n: int) -> None:
    assert replace(document.parse_seal(document.text(many(n))), digest="") == many(n)


def test_lines_that_are_no_files_are_refused() -> None:
    data = document.text(many(2))
    for wrong in (data.replace(b"},\n", b"}\n"), data.replace(b"},\n", b"],\n"), data.replace(b"{", b"[", 2)):
        with pytest.raises((Damage, document.NotASeal)):
            document.parse_seal(wrong)
