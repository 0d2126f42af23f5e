"""What an address names, for pages and API alike; what isn't there is a 404."""

from __future__ import annotations

from django.http import Http404

from runs.models import Experiment, ExperimentDraft
from runs.selectors import ExperimentMissing, experiment_by_slug
from runs.services.drafting import DraftMissing, draft_by_slug


def experiment_or_404(slug: str) -> Experiment:
    """Return the experiment of ``slug``.

    Raises:
        Http404: there is none.
    """
    try:
        return experiment_by_slug(slug)
    except ExperimentMissing as error:
        raise Http404 from error


def draft_or_404(slug: str) -> ExperimentDraft:
    """Return the draft of ``slug``.

    Raises:
        Http404: there is none.
    """
    try:
        return draft_by_slug(slug)
    except DraftMissing as error:
        raise Http404 from error
