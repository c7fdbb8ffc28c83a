"""The command line of pymtp, installed as `pymtp_cli`.

Each command is one file: it parses, calls pymtp, and prints. Nothing here may import pymtp at module
level: `pymtp --help` must not wait for the native library.
"""
