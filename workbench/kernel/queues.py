"""The queues that workers consume. Standard library only: the supervisor reads it."""

from typing import Final

EXECUTIONS: Final = "executions"
LABELLING: Final = "labelling"
DEFAULT: Final = "default"

QUEUES: Final = (EXECUTIONS, LABELLING, DEFAULT)
# An empty task that the sweeper sends through each; that it was taken up is what it says.
BEAT_TASK: Final = "workbench.beat"
