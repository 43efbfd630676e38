"""Inputs that nobody should write, and everything that reads what others wrote."""
