"""The rules, pure: no clock, no I/O, no async, no randomness, no logging."""
