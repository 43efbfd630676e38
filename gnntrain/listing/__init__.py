"""What there is: data sets, models, samplers, runs."""
