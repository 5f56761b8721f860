"""The metrics of ``ckpt watch`` for Prometheus: in a text file that is replaced, and at a port."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ckpt_tools import __version__
from ckpt_tools.errors import UsageError, explain_refusal
from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.pending import Record

if TYPE_CHECKING:
    from prometheus_client import Metric

STATES = ("good", "suspect", "bad", "unknown", "waiting")


class Answer(Struct, frozen=True):
    """The answer of ``plan`` for a root: its ``exit_code``, and as ``why`` its message. ``tracker`` says
    whether the tracker names the chosen checkpoint, None if there is no tracker.
    """

    exit_code: int
    path: str | None = None
    step: int | None = None
    why: str = ""
    tracker: bool | None = None


class Tally(Struct):
    """The counts of one root since this process began, and its present state. Times are seconds since the
    epoch; ``up``: the last listing worked.
    """

    root: str
    up: bool = False
    passed_at: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    verifications: Counter[str] = field(default_factory=Counter)
    hooks: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    seconds: float = 0.0
    last_good: Record | None = None
    interval: float | None = None
    answer: Answer | None = None
    again: int = 0


_GAUGES = (
    ("ckpt_watch_up", "Whether the directory could be listed.", lambda t: float(t.up)),
    ("ckpt_watch_last_pass_timestamp_seconds", "When it was listed last.", lambda t: t.passed_at or None),
    ("ckpt_last_good_step", "Step of the checkpoint that was saved last of those verified as good.",
     lambda t: t.last_good and t.last_good.step),
    ("ckpt_last_good_timestamp_seconds", "When that was saved.",
     lambda t: t.last_good and t.last_good.saved_at),
    ("ckpt_last_good_age_seconds", "How long ago that was.",
     lambda t: t.last_good and max(0.0, time.time() - t.last_good.saved_at)),
    ("ckpt_save_interval_seconds", "Median time between the newest saves.", lambda t: t.interval),
    ("ckpt_plan_exit_code", "What 'ckpt plan' would end with: 0 where a job could resume.",
     lambda t: t.answer and t.answer.exit_code),
    ("ckpt_plan_step", "Step that a job would resume from.", lambda t: t.answer and t.answer.step),
    ("ckpt_tracker_agrees", "Whether the framework's tracker names what 'ckpt plan' chooses.",
     lambda t: None if t.answer is None or t.answer.tracker is None else float(t.answer.tracker)),
    ("ckpt_restarts_from_same_step", "Starts in a row that resumed from the same step as the one before.",
     lambda t: t.again),
)  # fmt: skip
"""(name, help text, function from a Tally to the value): a value of None is left out."""
_COUNTS = (
    ("ckpt_checkpoints", "states", "state", "Checkpoints by state."),
    ("ckpt_damaged_checkpoints", "codes", "code",
     "Checkpoints of which the last verification found something, by finding."),
    ("ckpt_verifications", "verifications", "state",
     "Verifications since this process began, by what came of them."),
    ("ckpt_watch_hooks", "hooks", "result", "Commands that were called, by how they ended."),
    ("ckpt_watch_problems", "problems", "code", "What could not be done, by what it was."),
)  # fmt: skip
"""(name, field of a Tally, label for the counter's words, help text)."""


class Metrics:
    """Serves and writes metrics, if options ask for it, until it is closed. Raises UsageError without the
    package, CannotLook if the port is taken.
    """

    def __init__(self, options: WatchOptions, tallies: Sequence[Tally]) -> None:
        self._file, self._tallies, self._server = options.metrics_file, tallies, None
        self.port: int | None = None
        if options.metrics_file is None and options.metrics_port is None:
            return
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as e:
            text = "metrics need the package prometheus_client, which is not installed"
            raise UsageError(text, "pip install 'ckpt-tools[watch]'") from e
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        if (port := options.metrics_port) is not None:
            address = options.metrics_address
            hint = "name another one with --metrics PORT"
            with explain_refusal(f"metrics cannot be served on {address} port {port}", hint):
                self._server, _ = start_http_server(port, addr=address, registry=self._registry)
            self.port = self._server.server_port

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def write(self) -> None:
        """Replace the file, whole or not at all. Raises OSError."""
        if self._file is not None:
            from prometheus_client.exposition import write_to_textfile

            write_to_textfile(self._file, self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now; a thread of the server calls this as well."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        build = GaugeMetricFamily("ckpt_build_info", "The version of ckpt-tools.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        # a label is UTF-8: bytes of a path that are none are shown as such
        roots = (os.fsencode(tally.root).decode("utf-8", "backslashreplace") for tally in self._tallies)
        tallies = [*zip(roots, self._tallies, strict=True)]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["root"])
            for root, tally in tallies:
                if (number := value(tally)) is not None:
                    gauge.add_metric([root], float(number))
            yield gauge
        for name, counter, label, text in _COUNTS:
            family = GaugeMetricFamily if counter in ("states", "codes") else CounterMetricFamily
            made = family(name, text, labels=["root", label])
            for root, tally in tallies:
                for word, count in sorted(getattr(tally, counter).copy().items()):
                    made.add_metric([root, word], count)
            yield made
        read = CounterMetricFamily("ckpt_read_bytes", "Bytes that were read to verify.", labels=["root"])
        text = "Time that verifications took."
        took = SummaryMetricFamily("ckpt_verification_seconds", text, labels=["root"])
        for root, tally in tallies:
            read.add_metric([root], tally.bytes_read)
            count = sum(tally.verifications.copy().values())
            took.add_metric([root], count_value=count, sum_value=tally.seconds)
        yield from (read, took)
