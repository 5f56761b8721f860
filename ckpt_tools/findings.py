"""The catalogue of findings (docs/codes.md is made from it). Ids are never renamed and never reused."""

from __future__ import annotations

import re
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.model.finding import Finding, Severity

N, W, E = Severity.NOTE, Severity.WARNING, Severity.ERROR


class Code(NamedTuple):
    """One kind of finding. ``in_store`` is the hint where it is about an object in a store."""

    id: str
    severity: Severity
    title: str
    hint: str
    since: str = "0.1.0"
    in_store: str = ""

    def hint_at(self, path: str) -> str:
        """Return what to do next about a file, a directory or a URL."""
        return self.in_store if self.in_store and "://" in path else self.hint


NOT_SEEN = frozenset({"unreadable", "in-use", "unread-pickle"})
"""Findings after which nothing is known of a file: its verdict is ``unknown``, and nothing is planned as if
it were sound.
"""
WAIT = "wait if its job is still writing it; else resume from a copy of the same save, if that is whole"
"""What to do about a save that was written within --settle."""
_RESTORE = "restore this file from a backup, its download or a replica"

# One line a code reads as the table it is.
# fmt: off
CODES: dict[str, Code] = {
    c.id: c
    for c in (
        # one file, its bytes
        Code("truncated", E, "the file ends before its own structure says it does", _RESTORE),
        Code("empty-file", E, "the file has no bytes", _RESTORE),
        Code("zero-filled", E, "the file, or the weights in it, hold only zero bytes: they were never written", _RESTORE),
        Code("crc-mismatch", E, "bytes differ from the checksum stored with them", f"{_RESTORE}; if one bit flipped, 'ckpt repair PATH' finds it", in_store=_RESTORE),
        Code("checksum-mismatch", E, "the file is not the one that a manifest beside it was written for", "restore the file; if it was changed on purpose, write the manifest again"),
        Code("store-checksum-mismatch", W, "the bytes that were read are not those that the object store says it has", "run it again; if it stays so, ask past the proxies and caches that lie between; if it is so there too, the object is damaged: upload it again"),
        Code("unproven-content", N, "the checksums that the object store keeps do not show what is in the file", "verify it without --by-store, which reads the file; or seal it ('ckpt seal CHECKPOINT') before the upload, and upload it with a checksum of the whole object that the seal has too (CRC-32, CRC-32C)"),
        Code("pointer-not-data", E, "the file is only a pointer to the data, which was never downloaded, or the download failed", "fetch the data with the tool that keeps it; 'ckpt plan' asks before it takes an older checkpoint instead"),
        Code("bad-compression", E, "compressed data cannot be decoded, or decodes to another size", _RESTORE),
        Code("bad-header", E, "a header, directory or length field is invalid or contradicts another", _RESTORE),
        Code("bad-pickle", E, "the pickle stream is damaged and cannot be read to its end", _RESTORE),
        Code("trailing-data", E, "there are bytes after the end of the file's own structure", _RESTORE),
        Code("wrong-format", E, "the content is another format than the name or the layout says", "find out who wrote this file; rename it, or restore the right one"),
        Code("wrong-role", E, "the file was first saved under the name of another part of the checkpoint", "the files of two parts were swapped: restore the right one"),
        Code("missing-storage", E, "a tensor's storage has no record in the file", _RESTORE),
        Code("extra-storage", W, "a record holds a storage that no tensor refers to", "check whether the file was edited or joined from two"),
        Code("storage-size", E, "a storage record has another size than its tensors need", _RESTORE),
        Code("storage-dtypes", W, "one storage is named with two element types; loaders silently take the first for both", "compare the tensors with a replica or an older checkpoint: no version of torch.save writes this"),
        Code("compressed-storage", W, "a storage is compressed inside its archive: torch.load(mmap=True) would read the compressed bytes as numbers", "write the file again with torch.save, which stores storages uncompressed"),
        Code("tensor-out-of-bounds", E, "a tensor reaches beyond the bytes of its storage", _RESTORE),
        Code("tensor-size", E, "a tensor's bytes do not match its shape and type", _RESTORE),
        Code("unknown-dtype", W, "a tensor has an element type that this version does not know, so its size was not checked", "update ckpt-tools, or report the type"),
        Code("missing-tensor", E, "a tensor that belongs in this file is not in it, or has no elements: the index or the run's other saves have it, or it is a model's file without any", _RESTORE),
        Code("extra-tensor", W, "the index does not name a tensor that this file holds; loaders skip it", "check whether index and shards come from one save"),
        Code("duplicate-tensor", W, "a tensor name occurs twice; loaders silently keep one of them", "compare the two values before training on"),
        Code("duplicate-key", W, "a name occurs twice in a JSON object, an archive or a pickled dict; readers differ in which one they take", "find out who edited the file"),
        Code("unsafe-pickle", E, "loading this pickle would call code that no checkpoint needs", "do not load this file; find out where it comes from"),
        Code("unread-pickle", W, "a pickle was not read to its end, so nobody knows what loading it would call", "no framework writes a pickle of this size: find out where it comes from; report it if it is legitimate"),
        Code("suspect-call", W, "loading the pickle calls code that ckpt does not know", "if it is your own code, add --trust global='mycompany.*'; else load it with weights_only=True, or not at all"),
        Code("unknown-global", W, "a pickle that its framework loads without asking names code that ckpt does not know", "if it is your own code, add --trust global='mycompany.*'; else do not load this file"),
        Code("needs-trust", N, "torch.load refuses the pickle by default: a class outside its allow-list, or a newer protocol", "load it with weights_only=False only if you trust who wrote it"),
        Code("seal-mismatch", E, "the file is not the one that was sealed", "restore this file from a replica or a backup; if it was rewritten on purpose, seal it again with 'ckpt seal --again CHECKPOINT'"),
        Code("seal-missing", E, "a file that was sealed is not there", "restore it; if it was removed on purpose, seal the checkpoint again with 'ckpt seal --again CHECKPOINT'"),
        Code("seal-broken", W, "a seal cannot be used, so it proves nothing", "verify the files without it, and seal them again with 'ckpt seal --again CHECKPOINT'"),
        Code("seal-incomplete", W, "some ranks have not sealed their files", "wait for the job to finish its save; else seal the checkpoint with 'ckpt seal CHECKPOINT'"),
        Code("seal-extra", W, "a file lies in a sealed checkpoint that the seal does not name", "find out who wrote it; if it belongs there, seal the checkpoint again with 'ckpt seal --again CHECKPOINT'"),
        Code("seal-stale", W, "a seal is of another save than the files beside it, so it proves nothing", "seal the checkpoint again with 'ckpt seal --again CHECKPOINT'"),
        Code("signature-invalid", E, "no signature that fits the key covers the file", "do not load it unless you know who wrote it; if it is yours, sign it with 'ckpt seal --sign-key KEY CHECKPOINT' or model_signing"),
        Code("not-sealed", E, "no seal covers the file, and --require-seal asks for one", "if it is known to be good, seal it with 'ckpt seal CHECKPOINT'"),
        Code("not-checksummed", N, "the file carries no checksum over its data: a flipped bit in it cannot be seen", "write the format with checksums, or seal it ('ckpt seal CHECKPOINT')"),
        Code("checksum-off", N, "the writer switched checksums off (stored value 0)", "keep torch.serialization.set_crc32_options(True)"),
        Code("skeleton", W, "the file was saved with skip_data: all tensors are empty placeholders", "do not resume from it"),
        Code("zero-tail", W, "the data ends in a long run of zero bytes: a pre-sized file that was never filled looks like this", "compare with a replica or an older checkpoint"),
        Code("zero-pages", W, "whole pages of zero bytes lie in the middle of dense numbers: pages that were never written look like this", "compare with a replica or an older checkpoint"),
        Code("nan-values", W, "a tensor holds NaN", "the training diverged, or a bit of an exponent was flipped: resume from an older checkpoint"),
        Code("inf-values", N, "a tensor holds infinities: normal in masks and running minima, not in weights", "check the tensor that is named"),
        Code("absurd-values", W, "a tensor holds single values that are far too large compared with its others", "a flipped bit of the exponent looks like this: compare with a replica or an older checkpoint"),
        Code("needs-key", N, "the file is encrypted; only its framing was checked", "verify it on a machine that has the key, with CKPT_KEY_FILE=FILE"),
        Code("wrong-key", W, "the key that was given does not decrypt the file; only its framing was checked", "give the key that the file was saved with"),
        Code("below-level", W, "files were not looked at as deeply as --level asks", "this version cannot look deeper into them; --level content checks what it can"),
        Code("budget-spent", W, "the time given by --budget ran out before all files to load were read as deeply as --level asks", "give more time, or run 'ckpt verify ROOT' before: the job does not read again what it has verified"),
        Code("needs-extra", N, "an optional package is needed to look deeper", "install it where ckpt runs, then verify again"),
        Code("load-failed", E, "the framework's own loader cannot load the file", _RESTORE),
        Code("not-loaded", W, "the framework's loader refused the file or was stopped, so it proved nothing", "a refused class is not damage: its own framework may load the file with weights_only=False, if you trust who wrote it"),
        Code("mode-not-final", N, "the file's mode is not the one that MindSpore gives a finished checkpoint", "the file was copied, or its save was interrupted before the end: compare it with the others"),
        Code("not-needed", N, "a file that belongs to the checkpoint but holds no state: it was not looked at", "nothing has to be done"),
        Code("too-complex", W, "the file exceeds a bound of this reader, so part of it was not looked at", "if the file is legitimate, report it as an issue"),
        Code("odd-header", W, "a field that readers ignore differs from what the writer always writes", "the data is intact, but the disk or the transfer may be faulty: check other files from there", in_store="the data is intact, but the transfer may be faulty: check other files from there"),
        # one file, as the file system shows it
        Code("unreadable", W, "the file or directory could not be read, so nothing is known about it", "make it readable for the user that runs ckpt, or look for errors of the disk (dmesg); then run this again", in_store="check that the store answers, and that these credentials may read it; then run this again"),
        Code("in-use", W, "the file changed while it was read", "run again when its writer has finished"),
        Code("dangling-link", E, "a symbolic link points to nothing", "restore the target or remove the link"),
        Code("symlink-loop", E, "symbolic links form a loop", "remove the loop"),
        Code("not-a-file", E, "a directory or a special file is in the place of a checkpoint file", "move it away"),
        Code("no-layout", E, "files in a checkpoint format do not fit any layout", "describe its layout in ckpt.toml (docs/adding-a-layout.md); if it is not a checkpoint, 'ckpt plan --exclude GLOB' ignores it"),
        Code("unrecognised-file", W, "a large file of no known kind lies where a checkpoint was looked for", "if it is one, describe its layout in ckpt.toml; if it is none, 'ckpt plan --exclude GLOB' ignores it"),
        Code("external-data", E, "what belongs to the file's state lies in another file, which its loader reads in its place", "write the file again with all its data in it; if you do not know who wrote it, do not load it"),
        Code("path-escape", E, "a path inside the checkpoint leaves its directory", "do not load this checkpoint"),
        # one checkpoint
        Code("same-content", E, "the file is byte for byte that of another step or rank", "a copy has overwritten the right file: restore the right one"),
        Code("missing-rank", E, "a rank or shard of the checkpoint has no file", "it may be on another node's disk: gather all files in one place, or if ranks load only their own use 'ckpt run --agree'", in_store="bring it back, or upload it from the node that holds it; else the save was cut short"),
        Code("on-other-node", E, "a file that this node's ranks need lies on another node's disk", "copy it here, or share the disk", in_store="upload it from that node"),
        Code("missing-part", E, "a file that every checkpoint of this layout has is absent", "bring it back from a copy of the same save, if it was removed; else the save was cut short"),
        Code("missing-key", E, "an entry that CKPT_REQUIRE asks for is not in the file", "leave CKPT_REQUIRE out, or resume from a checkpoint that has the entry"),
        Code("step-mismatch", E, "name, directory and content disagree on the step", "the file belongs to another step: restore the right one"),
        Code("epoch-mismatch", E, "name and content disagree on the epoch", "the file belongs to another epoch: restore the right one"),
        Code("rank-mismatch", E, "the file was written by another rank than its path says", "the files of two ranks were swapped: restore the right one"),
        Code("generation-mismatch", W, "the ranks of this checkpoint carry different restart counters", "check that all ranks were restarted together"),
        Code("unfinished-save", W, "a save that never finished", "it was cut short, lacks its last file, or lacks only its name: resume from a copy of the same save, if that is whole"),
        Code("signature-changed", W, "the tensors differ from those of the same file at other steps", "compare it with one of another step: 'ckpt diff A B'"),
        Code("replica-mismatch", E, "a file that should stand in for another holds different tensors", "check --replica-groups"),
        Code("size-outlier", W, "a file has another size than the other members of its replica group", "compare it with one of them: 'ckpt diff A B'"),
        Code("mixed-attempts", W, "files of two attempts to save one step, or of two jobs, as their counters or times tell", "restore the files of one attempt; where one was only restored or changed since, nothing is wrong"),
        Code("replica-unproven", N, "nothing in the files contradicts or proves that this replica is equal", "--strict refuses such a substitute"),
        Code("replica-groups-needed", E, "a rank has no file and no known replica group", "say which ranks hold the same state: --replica-groups GROUPS (ranks with commas, groups with semicolons between them) or FILE, --strategy-dir DIR, or parallel sizes such as --parallel tp=2; or --replica-groups all"),
        # one run
        Code("stale-tracker", W, "the framework's own file of the latest checkpoint (its tracker, such as 'latest') names an older one than the newest complete one", "a framework that follows this file alone loses steps: rewrite it ('ckpt repair ROOT --tracker --apply'), or start it with the arguments that 'ckpt plan' gives"),
        Code("dangling-tracker", W, "the framework's own file of the latest checkpoint (its tracker) names one that is not there or not complete", "a framework that follows this file alone fails or starts from nothing: start it with the arguments that 'ckpt plan' gives"),
        Code("bad-tracker", W, "the framework's own file of the latest checkpoint (its tracker) is empty or not what it writes", "rewrite it ('ckpt repair ROOT --tracker --apply'), or start the framework with the arguments that 'ckpt plan' gives"),
        Code("missing-tracker", W, "the framework's own file of the latest checkpoint (its tracker) is missing although checkpoints exist", "a framework that follows this file alone starts from nothing: start it with the arguments that 'ckpt plan' gives"),
        Code("newer-index", N, "an index was written long after the files it names", "check that the shards are those that the index was made for"),
        Code("mtime-disagrees-with-step", W, "the newest checkpoint by modification time is not the one with the highest step", "after a rollback this is normal; after a copy add --order step"),
        Code("mtime-not-kept", W, "modification times tell nothing about the order of the saves, so the step decides", "copy checkpoints with their times (cp -a, rsync -t); add --order step if the highest step is meant"),
        Code("mtime-in-future", W, "a modification time lies in the future", "check the clocks, or add --order step"),
        Code("world-size-inferred", W, "the number of ranks is inferred from the highest rank on disk", "add --world-size N: otherwise a lost highest rank cannot be seen"),
        Code("lone-number", W, "a directory is numbered like that of a rank, and the one of rank 0 is not there", "bring the other directories back, or rename it if its number means something else"),
        Code("set-aside", N, "a copy that somebody made by hand is never chosen", "to resume from it, give it a name that the run's checkpoints have; to silence this note, move it away from the run"),
        Code("in-quarantine", N, "a checkpoint in quarantine is never chosen, but still counts as existing", "to bring it back: ckpt quarantine --undo PATH; while only such checkpoints are left, a job does not start from nothing"),
        Code("repaired-unwitnessed", W, "a flipped bit was located and repaired by one CRC, and nothing else proves the repair", "compare it with a copy of the same save: the warning stays as long as the file does"),
        Code("restart-loop", W, "several starts in a row resumed from the same checkpoint, and none has saved a later one", "look at how those jobs ended before starting it once more: 'ckpt plan ROOT --history' lists them"),
        Code("versions-kept", N, "deleted objects stay in the bucket as older versions", "set up a lifecycle rule of the bucket that removes old versions; until then they cost money"),
        Code("passed-over", N, "a file or checkpoint that is no older than the choice was not considered: it is named as the best or an export, or holds no later training state", "nothing has to be done, unless training went on from it"),
        Code("parallel-sizes", W, "the parallel sizes in the files contradict each other or the names on disk", "complete names on disk count first; add --parallel tp=N,pp=N and --world-size if they are wrong", in_store="complete names count first; add --parallel tp=N,pp=N and --world-size if they are wrong"),
        Code("topology-mismatch", E, "this layout cannot be loaded by another number of ranks", "start the job with the saved world size"),
        Code("not-inspected", W, "a path that was named holds no checkpoint file that ckpt knows", "check the path; 'ckpt formats' and 'ckpt layouts' list what is known"),
        Code("broken-plugin", W, "an installed plug-in cannot be used, so what only it knows is not recognised", "repair or remove the package that is named, or set CKPT_NO_PLUGINS=1"),
        Code("another-writer", W, "something else writes in the run: it did so while ckpt looked, or an earlier start is still running", "end it before this job starts, or the saves of both mix: it may be a process that a killed launcher left behind, or a second job"),
        Code("missing-run", W, "the run that was asked for does not exist, which --allow missing takes for a first launch", "check its spelling: 'ckpt ls ROOT' names the runs"),
        Code("missing-root", W, "ROOT does not exist, which --allow missing takes for a first launch", "check the spelling of ROOT and that its file system is mounted", in_store="check the spelling of ROOT, and that it is the right bucket and endpoint"),
        Code("fault-rank", E, "the file was written by a device that had already failed", "a replica's file is needed instead"),
        Code("attempts-exhausted", E, "more checkpoints exist, but CKPT_MAX_ATTEMPTS stopped the search", "raise CKPT_MAX_ATTEMPTS, or run 'ckpt verify ROOT' to see the damage"),
        Code("extra-file", W, "a rank has a second file in the same checkpoint", "find out which of the two belongs there; the plan takes the one that agrees with the others"),
    )
}
# fmt: on


def finding(  # noqa: PLR0913 - what a finding has
    code: str,
    message: str,
    *,
    offset: int | None = None,
    severity: Severity | None = None,
    path: str = "",
    hint: str = "",
    ranks: tuple[tuple[int, int], ...] = (),
    follows: bool = False,
    rule: str = "",
) -> Finding:
    """Return a finding with its code's severity and hint unless given. Raises KeyError for an unknown code."""
    c = CODES[code]
    severity = c.severity if severity is None else severity
    return Finding(code, severity, message, offset, hint or c.hint_at(path), path, ranks, follows, rule)


def adapt_hint(f: Finding, path: str) -> Finding:
    """Return the finding with its code's hint for objects of a store if ``path`` is a URL and it has one."""
    known = CODES.get(f.code)
    if known is None or f.hint != known.hint or f.hint == (hint := known.hint_at(path)):
        return f
    return replace(f, hint=hint)


def fill_hint(hint: str, path: str, root: str) -> str:
    """Return a hint with PATH and ROOT replaced by these, quoted for a shell; "" leaves the word."""
    for word, value in (("PATH", path), ("ROOT", root)):
        if value and word in hint:
            hint = re.sub(rf"\b{word}\b", lambda _, value=value: quote(value), hint)  # type: ignore[misc]
    return hint
