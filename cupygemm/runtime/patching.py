"""`patch`: CuPy's own names for the matrix product lead to `cupygemm.matmul`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cupygemm.kernels import driver
from cupygemm.runtime import api, fallback

log = logging.getLogger(__name__)

_MISSING = object()


class patch:
    """Puts `cupygemm.matmul` in the place of CuPy's matrix product: until further notice, or inside a `with` block.

        cupygemm.patch()

        with cupygemm.patch():
            c = a @ b

    What is replaced, for the whole process, all its threads included:

    - `cupy.matmul` and `cupy.linalg.matmul`, and so what CuPy computes through them (`cupy.einsum` with pairs of
      operands, `cupy.linalg.matrix_power`) and what NumPy hands on to them (`numpy.matmul` of CuPy arrays).
    - `a @ b` and `a @= b` of two `cupy.ndarray`. In CuPy 14 that is a class whose operators can be replaced; where one
      cannot be, `@` stays CuPy's, `operator` is False and a warning is logged.

    `from cupy import matmul` from before stays CuPy's, as do `a.dot(b)`, `cupy.dot` and `cupy.tensordot`. What no own
    kernel runs goes to CuPy's own matmul, never back to here. Patches may be nested: the last one undone puts back what
    was there before the first; a name that something else has replaced since is left alone.

    Attributes:
        operator: whether `@` is replaced.

    Raises:
        LaunchError: CuPy is not installed.
    """

    def __init__(self) -> None:
        with _state.lock:
            if not _state.depth:
                _state.replace()
            _state.depth += 1
        self.operator = _state.operator
        self._in_force = True

    def __repr__(self) -> str:
        names = "cupy.matmul and @" if self.operator else "cupy.matmul"
        return f"<cupygemm.patch: {names}, {'in force' if self._in_force else 'no longer in force'}>"

    def undo(self) -> None:
        """Takes the patch back; once is enough."""
        with _state.lock:
            if not self._in_force:
                return
            self._in_force = False
            _state.depth -= 1
            if not _state.depth:
                _state.restore()

    def __enter__(self) -> patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


class _State:
    """What is replaced while at least one patch is in force.

    Attributes:
        lock: held while anything here changes.
        depth: patches in force.
        operator: whether `@` is replaced.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.operator = False
        self._before: list[tuple[Any, str, Any, Any]] = []

    def replace(self) -> None:
        """Puts ours in the place of CuPy's."""
        cupy = driver.cupy()
        fallback.keep()
        for owner in (cupy, cupy.linalg):
            self._set(owner, "matmul", api.matmul)
        try:
            self._set(cupy.ndarray, "__matmul__", _operator(cupy.ndarray, cupy.ndarray.__matmul__))
            self.operator = True
        except TypeError as error:
            self.operator = False
            log.warning("the operator @ stays CuPy's: %s", error)

    def _set(self, owner: Any, name: str, ours: Any) -> None:
        # A class may only inherit what is replaced in it.
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, ours)
        self._before.append((owner, name, before, ours))

    def restore(self) -> None:
        """Puts back what was there, where ours still is."""
        while self._before:
            owner, name, before, ours = self._before.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


_state = _State()


def _operator(ndarray: type[Any], theirs: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`ndarray.__matmul__` with ours for two arrays; with all else, CuPy's decides who multiplies."""

    def __matmul__(self: Any, other: Any) -> Any:
        return api.matmul(self, other) if isinstance(other, ndarray) else theirs(self, other)

    return __matmul__
