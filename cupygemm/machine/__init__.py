"""What there is on this machine, and whether it will do."""
