"""`python -m kdlab` is `kdlab`."""

from kdlab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
