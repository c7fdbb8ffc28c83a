"""The command line of pymtp, installed as `pymtp_cli`.

Each command is one file: it parses, calls pymtp, and prints. It is imported when it is called: what help texts need
(app, commands, flags, table and what these import) may not import what needs the native library.
"""
