"""Completion of the command line in shells. Answers at once: nothing heavy is imported."""
