"""One job: how far it is, by a page that fetches its progress again."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from runs.models import ExperimentDraft
from runs.services.exporting import EXPORT_TASK
from runs.services.handing_in import PUSH_TASK
from runs.services.launching import ESTIMATE_TASK, RESCORE_TASK, START_TASK
from runs.services.uploading import IMPORT_TASK
from workbench.jobs import JobMissing, job_by_uid
from workbench.jobviews import FAILED, JobView, job_view
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.models import Job

# The section of the pages that a kind of job belongs to: its words and the name of its address.
_SECTIONS = {
    PUSH_TASK: ("Experiments", "experiments"),
    ESTIMATE_TASK: ("Experiments", "experiments"),
    START_TASK: ("Experiments", "experiments"),
    RESCORE_TASK: ("Experiments", "experiments"),
    EXPORT_TASK: ("Exports", "exports"),
    IMPORT_TASK: ("Suites", "suites"),
}


@dataclass(frozen=True)
class Link:
    """Where a link leads, and its words."""

    label: str
    url: str


@dataclass(frozen=True)
class JobPage:
    """One job, whatever it does; ``again`` is where one that failed is tried anew."""

    job: JobView
    section: Link | None
    again: Link | None


@dataclass(frozen=True)
class JobFragment:
    """The part of a page that is fetched again while a job goes on."""

    job: JobView


@require_safe
@unblinded_only
def job(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Show one job."""
    found = _job_or_404(uid)
    shown = job_view(found)
    section = _SECTIONS.get(found.kind)
    page = JobPage(
        job=shown,
        section=Link(section[0], reverse(section[1])) if section else None,
        again=_again(found) if shown.state == FAILED else None,
    )
    return render_page(request, "job.html", page)


def _again(job: Job) -> Link | None:
    """Return where what failed can be mended and asked for again, where there is such a page."""
    if job.kind == PUSH_TASK:
        return Link("Push again", f"{reverse('push')}?{urlencode({'experiment': job.subject})}")
    if job.kind == IMPORT_TASK:
        return Link("Upload again", f"{reverse('suite-new')}?{urlencode({'suite': job.subject})}")
    if job.kind == EXPORT_TASK:
        return Link("Export again", reverse("exports"))
    if job.kind == RESCORE_TASK:
        return Link("Open the experiment", reverse("experiment", kwargs={"slug": job.subject}))
    of_draft = job.kind in (ESTIMATE_TASK, START_TASK)
    if of_draft and ExperimentDraft.objects.filter(slug=job.subject).exists():
        return Link("Open the draft", reverse("draft", kwargs={"slug": job.subject}))
    return None


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
