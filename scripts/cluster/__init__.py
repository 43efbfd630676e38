"""Several machines on one: to try what the documentation says about them."""
