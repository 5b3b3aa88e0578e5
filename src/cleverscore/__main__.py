"""`python -m cleverscore` is the command `cleverscore`."""

from cleverscore.cli.main import main

if __name__ == "__main__":
    main()
