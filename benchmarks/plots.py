"""Two pictures from the line "sizes" of run.py, as SVG without any package: throughput and peak memory
against file size, both on logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 70, 150, 40, 50
COLOURS = {
    "ckpt verify": "#0b6e4f",
    "torch.load": "#c8553d",
    "zipfile": "#7768ae",
    "reading alone": "#888888",
}

Point = tuple[float, float]


def _ticks(low: float, high: float, base: float) -> list[float]:
    return [base**n for n in range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)]


def _bytes(n: float) -> str:
    return f"{n / 2**30:g} GiB" if n >= 2**30 else f"{n / 2**20:g} MiB"


def draw(title: str, lines: dict[str, Sequence[Point]], unit: str) -> str:
    """One picture: a line per name, x in bytes, y in ``unit``."""
    xs, ys = ([p[i] for points in lines.values() for p in points] for i in (0, 1))
    across = [t for t in _ticks(min(xs), max(xs), 4) if t >= 2**19]
    up = _ticks(min(ys), max(ys), 10)

    def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
        return lambda v: (
            start + (math.log(v) - math.log(low)) / (math.log(high) - math.log(low)) * (end - start)
        )

    x, y = scale(across[0], across[-1], LEFT, WIDTH - RIGHT), scale(up[0], up[-1], HEIGHT - BOTTOM, TOP)
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
            ' font-size="12">'
        ),
        (
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{LEFT}" y="22"'
            f' font-size="15">{title}</text>'
        ),
    ]
    foot, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    out += (
        f'<path d="M{x(t):.1f} {TOP}V{foot}" stroke="#eee"/><text x="{x(t):.1f}" y="{foot + 20}"'
        f' text-anchor="middle">{_bytes(t)}</text>'
        for t in across
    )
    out += (
        f'<path d="M{LEFT} {y(t):.1f}H{right}" stroke="#eee"/><text x="{LEFT - 8}" y="{y(t) + 4:.1f}"'
        f' text-anchor="end">{t:g} {unit}</text>'
        for t in up
    )
    labels: list[float] = []
    for name, points in sorted(lines.items(), key=lambda row: y(row[1][-1][1])):
        colour = COLOURS.get(name, "#333333")
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += (f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in points)
        at = max([y(points[-1][1]) + 4, *(label + 15 for label in labels)])
        labels.append(at)
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{at:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def pictures(lines: Iterable[dict[str, Any]]) -> dict[str, str]:
    """File name -> SVG; none when the line "sizes" was not measured."""
    rows = next((said["sizes"] for said in lines if "sizes" in said), [])
    speed: dict[str, list[Point]] = {}
    memory: dict[str, list[Point]] = {}
    for row in rows:
        for name, r in row["results"].items():
            memory.setdefault(name, []).append((row["bytes"], r["rss_mb"]))
            if not row["sparse"]:
                speed.setdefault(name, []).append((row["bytes"], row["bytes"] / 1e9 / r["median"]))
    if not rows:
        return {}
    return {
        "throughput.svg": draw(
            "A torch file, warm, whole process: bytes per second by file size", speed, "GB/s"
        ),
        "memory.svg": draw("Peak memory of the process by file size", memory, "MB"),
    }
