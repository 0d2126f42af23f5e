#!/usr/bin/env python3
"""The one entry point of the Skill Audit Workbench; see workbench/bootstrap.py.

This file must parse under any Python 3, so that an old one gets an answer
instead of a syntax error.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an old Python shall read this
    sys.stderr.write(
        "error: the Skill Audit Workbench needs Python 3.11 or newer; this is "
        + sys.version.split()[0]
        + " ("
        + sys.executable
        + "). Use a newer one by its name, as in: python3.12 manage.py demo\n"
    )
    sys.exit(1)

# Not a matter of course: safe-path mode leaves the script's folder out.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from workbench.bootstrap import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
