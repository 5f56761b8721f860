"""docs/did-not-resume.svg: the exit codes of ``ckpt plan``, each with what to do, as a chart."""

from __future__ import annotations

from html import escape

ROWS = (
    ("0", "a checkpoint is chosen", "the job took another: pass the plan's arguments, or repair --tracker"),
    ("2", "a question for you", "add the flag that the message ends with"),
    ("3", "there is no checkpoint", "path, mount, --guess; a first launch: --allow none"),
    ("4", "none is usable", "ckpt verify; repair, a backup; last of all --allow fresh"),
    ("5", "could not look", "mend permissions or the mount, then ask again"),
    ("6", "the newest is unusable", "leave out --no-fallback, or repair it"),
)
LEFT, WIDE, HIGH, GAP = 220, 200, 44, 14


def chart() -> str:
    """The chart, with a ground of its own, so that it can be read on any page."""
    height = len(ROWS) * (HIGH + GAP) + GAP
    middle = height / 2
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 {height}" role="img" font-family="sans-serif" font-size="14" fill="#1b1f24">',
        "<title>The exit code of ckpt plan, and what to do for each</title>",
        f'<rect width="980" height="{height}" rx="8" fill="#ffffff"/>',
        _box(14, middle - HIGH / 2, 150, "ckpt plan ROOT", "#dbe7ff"),
    ]
    for at, (code, meaning, action) in enumerate(ROWS):
        top = GAP + at * (HIGH + GAP)
        line = top + HIGH / 2
        out += [
            f'<path d="M164 {middle} H190 V{line} H{LEFT}" fill="none" stroke="#57606a"/>',
            _box(LEFT, top, WIDE, f"{code}: {meaning}", "#fff1c9" if code != "0" else "#d3f0d9"),
            f'<path d="M{LEFT + WIDE} {line} H{LEFT + WIDE + 30}" fill="none" stroke="#57606a"/>',
            _box(LEFT + WIDE + 30, top, 516, action, "#f3f4f6"),
        ]
    return "\n".join([*out, "</svg>", ""])


def _box(left: float, top: float, wide: float, text: str, ground: str) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{wide}" height="{HIGH}" rx="6" fill="{ground}" stroke="#57606a"/>'
        f'<text x="{left + 12}" y="{top + HIGH / 2 + 5}">{escape(text)}</text>'
    )
