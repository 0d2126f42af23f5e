#!/usr/bin/env python3
"""The one entry point of the Skill Audit Workbench; see workbench/bootstrap.py.

This file must parse under any Python 3, so that an old one gets an answer
instead of a syntax error.
"""

import os
import sys

if sys.version_info < (3, 11):
    sys.stderr.write(
        "error: the Skill Audit Workbench needs Python 3.11 or newer; %s is %d.%d. "
        "Install a newer one and run it with that name, as in: python3.12 manage.py demo\n"
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )
    sys.exit(1)

# Not a matter of course: safe-path mode leaves the script's folder out.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from workbench.bootstrap import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv))
