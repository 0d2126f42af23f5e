"""Be the keeper of a command's services; see workbench/supervise/keeper.py."""

import sys

from workbench.supervise.keeper import run_keeper

sys.exit(run_keeper())
