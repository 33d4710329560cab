"""`python -m cupygemm`, and the script `cupygemm`."""

from __future__ import annotations

import sys


def run() -> None:
    """Runs the command line; Ctrl-C while that is still being imported is no traceback either."""
    try:
        from cupygemm.cli import main

        main(prog_name="cupygemm")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 and the number of SIGINT, as shells have it


if __name__ == "__main__":
    run()
