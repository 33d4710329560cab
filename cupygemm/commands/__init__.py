"""The commands of `cupygemm`, a module each.

`NAME.py` declares a command: its arguments, its options and its sentence of help. Every declaration is loaded whenever
the program starts, so what is heavy, and all of the search, is imported inside the function of the command. What takes
more than a few lines to do is in `NAME_run.py`, and what it shows, if that is long, in `NAME_view.py`.
"""
