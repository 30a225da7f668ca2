"""`python -m microrl` is the `microrl` command."""

from microrl.cli import main

main()
