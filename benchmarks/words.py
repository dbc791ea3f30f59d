"""The words of a command line, for the scripts beside this file."""
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def take(words, name, default):
    """The value of the option, which is taken out of the words."""
    if name not in words:
        return default
    at = words.index(name)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def tokens(count):
    return int(float(count[:-1]) * UNITS[count[-1]]) if count[-1] in UNITS else int(count)
