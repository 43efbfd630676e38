"""What this machine offers, what is missing, and what `auto` chooses on it."""
