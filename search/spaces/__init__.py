"""What may be tried: knobs, what is legal, sub-spaces that are recorded whole, and which choices stay legal."""
