"""Words for a person: counts with their noun, errors in one line, and text that is safe to put on a terminal."""

from __future__ import annotations


def count(number: int, noun: str, plural: str | None = None) -> str:
    """ "1 entry", "2 entries"; `plural` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """The text with every control character replaced: a file from a stranger must not move the cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def type_name(value: object) -> str:
    """The type's name with its module: "numpy.ndarray", "list"; CuPy's arrays and NumPy's have the same without."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def one_line(error: Exception) -> str:
    """What an error says, in one line; one of the operating system leads with the file."""
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename or 'file'}: {error.strerror or error}"
    return printable(" ".join(text.split()))
