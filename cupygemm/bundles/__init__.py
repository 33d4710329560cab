"""What ships and what is in force: configs by problem, in files that are safe to read."""
