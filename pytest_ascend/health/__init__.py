"""The health of the machine that tests run on."""
