"""Programs that measure, search and make what ships, for those who work on cupygemm; nothing here is installed.

Each is run from the root of the sources: `python -m bench.NAME`.
"""
