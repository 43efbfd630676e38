"""A report of runs: one page with everything, or its tables or curves alone."""
