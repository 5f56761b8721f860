"""``save/file-verdict``."""

from __future__ import annotations

from ckpt_tools.errors import CkptError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.planning.rules.rule import Effect, Hit, Rule, error_of, finding_of


def ask_for_data(c: Checkpoint, f: Finding, name: str, hint: str) -> CkptError:
    text = f"{c.label} ({c.path}) may not be the newest checkpoint: another was not fetched"
    return error_of(RULE, Hit(f.path, f"{text} ({name}: {f.message})", hint))


def describe_unneeded(path: str) -> Finding:
    mac = path.rpartition("/")[2].startswith("._")
    what = "what macOS keeps of the file beside it" if mac else "a graph"
    return finding_of(RULE, Hit(path, f"{what}: it holds no state", code="not-needed"))


RULE = Rule(
    id="save/file-verdict",
    codes=(
        *("bad-header", "truncated", "empty-file", "crc-mismatch", "checksum-mismatch"),
        *("store-checksum-mismatch", "unproven-content", "pointer-not-data", "bad-compression", "bad-pickle"),
        *("trailing-data", "wrong-format", "missing-storage", "extra-storage", "storage-size"),
        *("storage-dtypes", "compressed-storage", "tensor-out-of-bounds", "tensor-size", "unknown-dtype"),
        *("duplicate-tensor", "duplicate-key", "not-checksummed", "checksum-off", "needs-extra"),
        *("not-needed", "too-complex", "odd-header", "not-a-file", "repaired-unwitnessed", "wrong-role"),
        *("path-escape", "external-data", "load-failed", "not-loaded", "missing-key"),
        *("needs-key", "wrong-key"),
    ),
    effect=Effect.REJECT,
    answer="restore the file from a copy, a replica or an older checkpoint; ckpt explain CODE",
    why="""\
The bytes of one file are not what its format says they must be, or not what is to be loaded from it: it
is another part's, leads out of the checkpoint, lacks what CKPT_REQUIRE names, or its framework's own loader
refuses it. Each finding has a code of its own (docs/codes.md). A broken file is never loaded: a replica
takes its place, or an older save is chosen. Of a newer save that is only a pointer to its data (Git LFS,
an error page), plan asks.
For: PytorchStreamReader failed, unexpected EOF, after a full disk or a killed job;
safetensors/safetensors#668; ONNX external data; MindSpore save_checkpoint(enc_key=…).
""",
)
