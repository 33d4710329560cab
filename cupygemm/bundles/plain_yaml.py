"""YAML that may come from strangers, as plain data: `read` refuses what no honest file needs.

That is a file too large, nested too deep, with aliases, anchors or tags, or with a key twice in a mapping. JSON is YAML
too, and read seven times as fast as blocks are by libyaml.
"""

from __future__ import annotations

import json
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from cupygemm.errors import BundleError

MAX_BYTES = 8 * 1024 * 1024
"""Largest file that is read: some eight thousand entries."""
MAX_DEPTH = 12
"""Deepest nesting that is parsed; a bundle itself needs four."""

_SafeLoader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: type = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_WRITES = "`cupygemm tune ... -o FILE` writes one"

# A string is skipped whole; one without an end too, so that each byte is looked at once.
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Builds plain data, and refuses a key that stands twice in a mapping, where YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} stands twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _NoAliases(_Dumper):  # type: ignore[misc]
    """Writes equal objects twice: `read` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(document: Any) -> str:
    """Plain data as YAML, a line a value."""
    return str(yaml.dump(document, Dumper=_NoAliases, sort_keys=False, allow_unicode=True, width=120))


def read(path: Path | Traversable) -> Any:
    """The document in a file.

    Raises:
        BundleError: the file cannot be read, is no YAML, or is one of those that are refused.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: {error.strerror}; name a bundle that is there: {_WRITES}") from error
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise BundleError(f"{path}: larger than {MAX_BYTES} bytes, no bundle is")
    try:
        return _from_json(path, data) or _from_yaml(path, data)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, BundleError):
            raise
        words = " ".join(str(error).split()).replace('in "<byte string>",', "at")  # the file has been named
        raise BundleError(f"{path}: not YAML that can be read: {words}") from error


def _from_json(path: Path | Traversable, data: bytes) -> Any:
    """The object, or None where it is none in JSON: then the reader of YAML has the last word."""
    if not data.startswith(b"{"):
        return None
    depth = 0
    for token in _JSON_TOKEN.finditer(data):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            line = data.count(b"\n", 0, token.start()) + 1
            raise BundleError(f"{path}, line {line}: nested deeper than {MAX_DEPTH} levels")

    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BundleError(f"{path}: not YAML that can be read: the key {twice} stands twice")
        return found

    try:
        return json.loads(data, object_pairs_hook=unrepeated)
    except BundleError:
        raise
    except ValueError:
        return None


def _from_yaml(path: Path | Traversable, data: bytes) -> Any:
    _refuse_bombs(path, data)
    return yaml.load(data, Loader=_Loader)


def _refuse_bombs(path: Path | Traversable, data: bytes) -> None:
    """Walks the events, which builds nothing: aliases multiply a file, nesting ends the C stack, tags name types."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise BundleError(f"{path}, {_place(event)}: aliases, anchors and tags are not allowed in a bundle")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise BundleError(f"{path}, {_place(event)}: nested deeper than {MAX_DEPTH} levels")


def _place(event: yaml.Event) -> str:
    return "line unknown" if event.start_mark is None else f"line {event.start_mark.line + 1}"
