"""What learns within one search, knob after knob, and what all networks have in common."""
