"""Two cells over the tasks they share: is B, with the edited skills, better than A before it?

A is the old side, B the new one. What is compared is the library; everything else of the protocol
must be equal, or be named as allowed to differ. Definitions: docs/statistics.md.
"""

from runs.domain.comparing.cells import (
    CellComparison,
    Comparison,
    LeftOut,
    Reading,
    SdRuns,
    SetRow,
    compare,
    compare_cells,
)
from runs.domain.comparing.matching import (
    CellAbout,
    Difference,
    Factor,
    Match,
    Matching,
    ProtocolDiffers,
    Side,
    Unmatched,
    differences_of,
    match_cells,
    match_named,
    match_pair,
)
from runs.domain.comparing.pairs import SET_CHANGES, SetChange, SharedPair, TaskPair
from runs.domain.comparing.rae import (
    FEWEST_TASKS,
    NO_INTERVAL,
    NoInterval,
    RaeChange,
    TaskNet,
    rae_difference_interval,
)
from runs.domain.comparing.words import BETTER, UNDECIDED, WORSE, headline, notes, verdict

__all__ = [
    "BETTER",
    "FEWEST_TASKS",
    "NO_INTERVAL",
    "SET_CHANGES",
    "UNDECIDED",
    "WORSE",
    "CellAbout",
    "CellComparison",
    "Comparison",
    "Difference",
    "Factor",
    "LeftOut",
    "Match",
    "Matching",
    "NoInterval",
    "ProtocolDiffers",
    "RaeChange",
    "Reading",
    "SdRuns",
    "SetChange",
    "SetRow",
    "SharedPair",
    "Side",
    "TaskNet",
    "TaskPair",
    "Unmatched",
    "compare",
    "compare_cells",
    "differences_of",
    "headline",
    "match_cells",
    "match_named",
    "match_pair",
    "notes",
    "rae_difference_interval",
    "verdict",
]
