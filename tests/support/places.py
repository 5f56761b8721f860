"""Where things are in a clone, and in an unpacked source distribution: the one place that counts folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
PACKAGE = ROOT / "ckpt_tools"
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"
FIXTURES = ROOT / "fixtures"
FORMAT_FILES = FIXTURES / "formats"
LAYOUT_TREES = FIXTURES / "layouts"
