"""What this machine has: packages, hardware, disks, data sets, stores, models, runs."""
