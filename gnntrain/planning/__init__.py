"""What a run will need, before it runs: memory, sampled sizes, time, disk."""
