"""What shows a long command: one protocol, whatever comes piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Write = Callable[[str], None]
"""Puts one line on standard output."""

Item = TypeVar("Item", contravariant=True)


class View(Protocol[Item]):
    """Shows items as they come, and what all of them amount to at the end."""

    def running(self) -> AbstractContextManager[Any]:
        """Entered while items come."""
        ...

    def add(self, item: Item, /) -> None:
        """One more has come."""
        ...

    def end(self, document: Mapping[str, Any]) -> None:
        """No more come; `document` is what a program is told of all of them."""
        ...
