"""``python -m cachetier`` is the command ``cachetier``."""

from cachetier.cli.main import main

if __name__ == "__main__":
    main()
