"""``python -m data_prep`` is the same as the console script ``ssmpi-prepare``."""

from data_prep.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
