"""``ckpt seal``: store the digests of sound files, so that any later change shows."""

from __future__ import annotations

from ckpt_tools import guard
from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.progress import progress
from ckpt_tools.model.seal import Sealing


@options.ask(
    ("table", "json"),
    options.paths("Checkpoints, or directories of them."),
    parameter(
        "--digest NAMES",
        "Digest of whole files: xxh3 (default), sha256 or blake3; behind commas further ones: md5,"
        " sha1, sha256, sha512, blake3, crc64nvme; tensors: one for each tensor as well.",
    ),
    parameter(
        "--sign-key FILE",
        "Also sign it with this private key (PEM, elliptic curve), as model_signing does.",
    ),
    parameter("--again", "Replace seals without comparing the files with them first."),
    parameter("--merge", "Merge the seals of all ranks into one."),
    parameter("--dry-run", "Read and verify, but write nothing."),
    "settle strict jobs limit_rate progress_as",
    "seal_dir require key_file store_option io also tensors",
    options.TREE,
    trees_in="paths",
)
def seal(asked: options.Asked) -> int:
    """Verify every checkpoint at or below PATH, and write a seal with the digests of all its files into each
    one that is sound. From then on 'verify', 'plan', 'latest' and 'run' compare the files with it. Nothing
    else is written. Files that are damaged, unfinished or in use are named and not sealed. What is sealed
    already is read as well: a file that is not the one that was sealed is damage.

    Exit codes: 0 everything sound has a seal (with --strict 1 if something is unfinished or in use); 1 damage
    found; 3 nothing recognised; 5 something could not be looked at, or a seal could not be written.

    Examples:
    ckpt seal run  # verify everything, and seal what is sound
    ckpt seal run --dry-run  # say what would be sealed
    ckpt seal run/iter_0000020 --digest sha256  # with digests that sha256sum prints
    CKPT_SEAL_DIR=seals ckpt seal run  # for a tree that is read-only
    ckpt seal run --json  # the same for a program (docs/json.md)
    """
    settings, given = asked.settings, asked.given
    output.say_broken_plugins()
    names = [name.strip() for name in f"{given['digest'] or 'xxh3'},{given['also'] or ''}".split(",")]
    first, *more = [name for name in names if name and name != "tensors"] or ["xxh3"]
    with progress(asked.to) as meter:
        result = guard.seal(
            given["paths"],
            digest=first,
            also=tuple(more),
            tensors=given["tensors"] or "tensors" in names,
            **{name: given[name] for name in ("sign_key", "again", "merge", "dry_run")},
            **settings.reading(),
            progress=meter,
        )
    asked.answer("sealing", result)
    return exit_code(result, settings.values.get("strict", False))


def exit_code(result: Sealing, strict: bool) -> int:
    """Return 5 if a file could not be read, else 1 for damage (``strict``: or unfinished), else 0, or 3."""
    if result.count("unreadable") or any(f.code == "unreadable" for f in result.findings):
        return 5
    if result.count("broken") or (strict and (result.count("unfinished") or result.count("in-use"))):
        return 1
    return 0 if result.checkpoints else 3
