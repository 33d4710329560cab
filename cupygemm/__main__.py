"""`python -m cupygemm`, and the script `cupygemm`."""

from __future__ import annotations

import sys


def run() -> None:
    """Runs the command line; Ctrl-C while that is still being imported is no traceback either."""
    try:
        from cupygemm.cli import main

        main(prog_name="cupygemm")
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    run()
