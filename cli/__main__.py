"""`python -m pymtp_cli` is `pymtp`."""

from .main import main

main()
