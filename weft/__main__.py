"""`python -m weft`: the command line."""

from weft.frontend.tools.main import main

if __name__ == "__main__":
    raise SystemExit(main())
