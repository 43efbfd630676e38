"""The contestants, each a script that takes turns in a process of its own."""
