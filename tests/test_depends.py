"""What makes a recorded search stale: the code that it went through, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import depends
from bench.comparison.depends import digest_of
from cupygemm import legality
from cupygemm.search import store
from cupygemm.search.spaces import space
from cupygemm.search.strategies import local

LOCAL = frozenset((local.__name__,))


def changed(monkeypatch: pytest.MonkeyPatch, module: object, old: str, new: str) -> str:
    """The digest of `local` after a change of a module's text."""
    path = Path(str(getattr(module, "__file__", None)))
    text = path.read_text(encoding="utf-8")
    assert old in text
    read = Path.read_text

    def edited(self: Path, *args: str, **options: str) -> str:
        return text.replace(old, new, 1) if self.samefile(path) else read(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", edited)
        digest_of.cache_clear()
        found = digest_of(LOCAL)
    digest_of.cache_clear()
    return found


def test_code_that_is_imported_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, legality, "def illegal_reason", "def reason_against") != digest_of(LOCAL)


def test_code_that_is_not_imported_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, store, "class TrialStore", "class Store") == digest_of(LOCAL)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"""', '"""Otherwise said. '), ("from __future__ import annotations", "# A remark."), ("\n\n\n", "\n\n")],
)
def test_words_do_not_count(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, space, old, new) == digest_of(LOCAL)


def test_versions_of_packages_count() -> None:
    assert digest_of(LOCAL, ("numpy",)) != digest_of(LOCAL, ())


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        digest_of(frozenset(("bench.nothing_of_that_name",)))


def test_the_front_door_is_no_part_of_it() -> None:
    parts = {path.parent.name for path in depends._imported(LOCAL)}
    assert "strategies" in parts
    assert not parts & {"runtime", "machine"}
