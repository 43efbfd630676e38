"""`python -m gnntrain`."""

from gnntrain.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
