"""Recorded results as Markdown and as pictures."""
