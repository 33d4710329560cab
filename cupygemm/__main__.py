"""`python -m cupygemm`: the command line without the console script."""

from cupygemm.cli import main

if __name__ == "__main__":
    main()
