"""Is this machine fit to judge anything? What is installed, what fits together, whether the devices answer."""
