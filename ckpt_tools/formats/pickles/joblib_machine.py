"""Reads pickles with joblib's arrays in their stream: a machine that goes over the elements behind each."""

from __future__ import annotations

from typing import Any

from ckpt_tools.formats.pickles.joblib_arrays import ALIGNMENT, WRAPPER, behind
from ckpt_tools.formats.pickles.machine import Machine
from ckpt_tools.formats.pickles.stubs import Call, Filled, NeedMore, Nested


class JoblibMachine(Machine):
    """A machine that knows where the pickle goes on behind an array."""

    __slots__ = ()

    def build(self) -> None:
        target = self.stack[-2]
        if type(target) is Call and target.func == WRAPPER:
            self._array(self.stack[-1], target)
        else:
            super().build()

    def _array(self, state: Any, target: Call) -> None:
        """An array, and the elements behind it. Raises Nested where these are a pickle."""
        follows, at = behind(state), self.pos
        if follows.padded:
            at = self._behind_padding()
        if self.frame not in (-1, self.pos):
            raise self.bad("an array lies inside a frame")
        self.frame = -1
        self.stack.pop()
        target.state = state
        self.bare += not follows.padded
        if follows.objects:
            raise Nested
        self.filled.append(Filled(target, self.base + at, follows.nbytes))
        self.pos = at + follows.nbytes

    def _behind_padding(self) -> int:
        """Where the elements begin: a byte says how many bytes 0xff come first."""
        at, known = self.pos, len(self.data)
        end = at + 1 if at >= known else at + 1 + self.data[at]
        if end > known or at >= known:
            raise NeedMore(end, self.base + at)
        padding = self.data[at + 1 : end]
        if not 0 < len(padding) <= ALIGNMENT or padding.strip(b"\xff"):
            raise self.bad("the padding before an array is not joblib's")
        return end
