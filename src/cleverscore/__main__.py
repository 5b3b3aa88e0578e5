"""`python -m cleverscore` is the command `cleverscore`."""

from cleverscore.cli import main

if __name__ == "__main__":
    main()
