"""Completion of the command line in shells. Answers at once: nothing heavy is imported.

Hydra's own completion knows neither commands nor runs, and imports Hydra at each Tab: 0.2 s, where
this one takes 0.07 s. shtab completes the options of argparse's parsers, not keys and their values.
"""
