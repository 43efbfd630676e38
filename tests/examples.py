"""How many examples a property test tries: a fifth, and all of them by `thorough`.

python -m pytest -m hypothesis --hypothesis-profile=thorough
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ALL = 100
settings.register_profile("quick", max_examples=_ALL // 5)
settings.register_profile("thorough", max_examples=_ALL)
settings.load_profile("quick")  # before pytest loads the one that is asked for


def share(number: int) -> int:
    """How many of `number` examples are tried."""
    # On a GPU each example may mean kernels to compile.
    most = number // 4 if os.environ.get("TRITON_INTERPRET") != "1" else number
    return min(number, max(5, most * settings().max_examples // _ALL))


def examples(number: int) -> settings:
    """So many examples when all are tried; without a deadline."""
    return settings(
        max_examples=share(number),
        deadline=None,
        # All examples of a test run with what its fixtures made.
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
