"""Of the whole checkout: pytester is only allowed here."""

pytest_plugins = ["pytester"]
