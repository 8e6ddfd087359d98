"""``python -m ssmpi`` is the same as the console script ``ssmpi``."""

from ssmpi.cli import main

if __name__ == "__main__":
    main()
