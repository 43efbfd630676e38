"""Whether training works on this machine."""
