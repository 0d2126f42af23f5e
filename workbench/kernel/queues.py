"""The queues that workers consume. Standard library only: the supervisor reads it."""

from typing import Final

EXECUTIONS: Final = "executions"
LABELLING: Final = "labelling"
DEFAULT: Final = "default"

QUEUES: Final = (EXECUTIONS, LABELLING, DEFAULT)
