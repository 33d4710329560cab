"""What bench/compare.py and bench/ablations.py share: strategies, the points they search, and what comes of it."""
