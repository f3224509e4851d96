"""``python -m probtorch``: what it runs on, and whether a GPU can be used; see `__config__`."""

from probtorch import __config__

if __name__ == "__main__":
    print(__config__.show())
