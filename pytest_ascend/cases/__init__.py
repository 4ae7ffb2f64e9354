"""Which inputs: cases, their copies on a device, and the layouts an argument can be given in."""
