"""`python -m heterps` is the command `heterps`, where that is not on the path."""

from heterps.cli import main

if __name__ == "__main__":
    main()
