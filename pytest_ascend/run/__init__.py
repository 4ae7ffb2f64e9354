"""Where and how items run: on which device, in which process, on which machine."""
