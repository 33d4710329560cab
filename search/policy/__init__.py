"""The policy that serves many problems: what it sees, how it is trained and kept, and what it suggests."""
