"""`python -m tranlogs`: the command line, where `tranlogs` is not on the PATH."""

from .cli import main

if __name__ == "__main__":
    main()
