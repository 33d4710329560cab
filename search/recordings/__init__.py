"""Recorded tables: how they are made, read, found, scored on, and written for other programs."""
