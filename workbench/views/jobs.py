"""One job: how far it is, by a page that fetches its progress again."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from workbench.jobs import JobMissing, job_by_uid
from workbench.jobviews import JobView, job_view
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.models import Job


@dataclass(frozen=True)
class JobPage:
    """One job, whatever it does."""

    job: JobView


@dataclass(frozen=True)
class JobFragment:
    """The part of a page that is fetched again while a job goes on."""

    job: JobView


@require_safe
@unblinded_only
def job(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Show one job."""
    return render_page(request, "job.html", JobPage(job_view(_job_or_404(uid))))


@require_safe
@unblinded_only
def progress(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Return the progress alone; once the job ends the whole page is asked for again."""
    shown = job_view(_job_or_404(uid))
    response = render_page(request, "_job.html", JobFragment(shown))
    if not shown.live:
        response["HX-Refresh"] = "true"
    return response


def _job_or_404(uid: UUID) -> Job:
    try:
        return job_by_uid(uid)
    except JobMissing as error:
        raise Http404 from error
