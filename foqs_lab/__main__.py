"""`python -m foqs_lab` is the `foqs-lab` command."""

from foqs_lab.cli import main

if __name__ == "__main__":
    main()
