from tests.compute.registrations import _device  # noqa: F401
