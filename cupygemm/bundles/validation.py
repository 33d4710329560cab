"""Pydantic's findings about a file, in one line for a person."""

from __future__ import annotations

from pydantic import ValidationError


def describe(error: ValidationError, most: int = 4) -> str:
    """The key path and what is legal of each finding, at most `most` of them, joined by semicolons."""
    findings = error.errors(include_url=False, include_context=False)
    lines = [f"{_path(finding['loc'])}: {_reason(finding['msg'], finding.get('input'))}" for finding in findings[:most]]
    if len(findings) > most:
        lines.append(f"and {len(findings) - most} more")
    return "; ".join(lines)


def _path(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".") or "the document"


def _reason(message: str, value: object) -> str:
    text = message.removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if isinstance(value, dict | list) or value is None:
        return text
    return f"{text}, not {str(value)[:60]!r}" if message == text or "should" in text else text
