"""A program run for its exit status: ``python exit_recorded.py FILE PROGRAM [ARGUMENT ...]``.

msSanitizer exits with 0 whatever its program did, so this stands between the two. FILE then holds the status, negative
for a signal. It is run by its path, so that it needs nothing of ours, and ends as its program did.
"""

import os
import signal
import subprocess
import sys


def main(arguments: "list[str]") -> int:
    """Run the program; write and return its status. One that can't be started has 127."""
    path, command = arguments[0], arguments[1:]
    try:
        status = subprocess.call(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror or error}", file=sys.stderr)
        status = 127
    with open(path + ".part", "w", encoding="ascii") as file:
        file.write(f"{status}\n")
    os.replace(path + ".part", path)
    return status


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    if ended < 0:
        signal.signal(-ended, signal.SIG_DFL) if -ended not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
