"""The workbench from Python: a thin, typed client of its API, with pandas frames.

It needs ``httpx2``, and for frames ``pandas``; of the workbench itself it imports nothing, so it
can stand in any notebook or harness. How to use it: docs/api.md.
"""

from workbench.client.api import Workbench
from workbench.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    JobFailed,
    NotFound,
    NotSignedIn,
    ServerFailed,
    TimedOut,
    TooLarge,
    TooManyRequests,
    Unreachable,
    WorkbenchError,
)
from workbench.client.shapes import (
    ArmResult,
    Check,
    Draft,
    Experiment,
    Export,
    Invitation,
    Job,
    Pair,
    Person,
    Problem,
    Progress,
    Token,
)

__all__ = [
    "ApiError",
    "ArmResult",
    "Check",
    "Conflict",
    "Draft",
    "Experiment",
    "Export",
    "Forbidden",
    "Gone",
    "Invalid",
    "Invitation",
    "Job",
    "JobFailed",
    "NotFound",
    "NotSignedIn",
    "Pair",
    "Person",
    "Problem",
    "Progress",
    "ServerFailed",
    "TimedOut",
    "Token",
    "TooLarge",
    "TooManyRequests",
    "Unreachable",
    "Workbench",
    "WorkbenchError",
]
