"""The one exception type for bad user input."""


class InputError(ValueError):
    """Bad user input: one clear line naming file, key and allowed values; the command line prints
    it and exits with 2."""
