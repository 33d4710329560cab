"""What several programs of bench/ share, and what runs in their child processes."""
