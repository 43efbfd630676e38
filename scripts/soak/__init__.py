"""A soak: runs that are disturbed at random and must end as if nothing had happened."""
