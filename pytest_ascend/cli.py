"""The command `pytest-ascend`."""


def main() -> int:
    return 0
