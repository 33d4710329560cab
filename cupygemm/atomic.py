"""Files that exist whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader, a crash or a full disk never leaves half of it.

    Args:
        path: the file; its directory is made where it does not exist, an older file is replaced.
        data: the whole content.

    Raises:
        OSError: the directory or the file cannot be written; the older file, if any, is untouched.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def check_writable(path: Path) -> None:
    """Finds out now whether `write_atomically` will find a folder to write in; leaves nothing behind.

    Raises:
        OSError: the folder, or the nearest above it that exists, takes no files.
    """
    with naming(path):
        _try(path.absolute().parent)


def check_folder(folder: Path, remedy: str = "") -> None:
    """Finds out now whether a folder, which may not exist yet, takes files; leaves nothing behind.

    Args:
        remedy: goes behind what the error says.

    Raises:
        OSError: it does not, or the nearest above it that exists takes none.
    """
    with naming(folder, remedy):
        _try(folder.absolute())


def _try(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    tempfile.TemporaryFile(dir=there).close()


@contextmanager
def naming(path: Path, remedy: str = "") -> Iterator[None]:
    """Lets an OSError inside name this file, and not a temporary one or a lock beside it, and say what to do."""
    try:
        yield
    except OSError as error:
        words = "; ".join(filter(None, (error.strerror or str(error), remedy)))
        raise OSError(error.errno, words, str(path)) from error
