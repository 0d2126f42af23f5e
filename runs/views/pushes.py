"""Handing in runs that another program made."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from runs.domain.report import Preset
from runs.domain.rows import BadRows, UnmatchedReplicates
from runs.services.handing_in import BadPushRequest, PushTooLarge, keep_rows, request_push
from runs.services.pushing import LARGEST_BYTES, MOST_ROWS, READERS, BadPush, OtherContent
from workbench.kernel.forms import Fault, posted
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.kernel.uploads import takes_upload

SHOWN = 50
_FIELDS = {
    "experiment": ("experiment", "Name"),
    "preset": ("preset", "Preset"),
    "failure_policy": ("failure_policy", "Failed model calls"),
    "format": ("file", "File"),
}


@dataclass(frozen=True)
class PushPage:
    """The form, with what was wrong with the last try."""

    experiment: str
    preset: str
    presets: tuple[str, ...]
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    problems_left_out: int
    largest_mb: int
    most_rows: str


@takes_upload(LARGEST_BYTES)
@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def push(request: HttpRequest) -> HttpResponse:
    """Show the form; keep the rows that were handed in and show how far their storing is."""
    if request.method != "POST":
        return _form(request, request.GET.get("experiment", ""))
    given = posted(request, "experiment", "preset", files=("file",))
    slug, preset = given["experiment"].strip(), given["preset"] or Preset.DEFAULT.value
    file = request.FILES.get("file")
    if file is None:
        return _form(request, slug, preset, (Fault("file", "File: choose a .jsonl or .csv."),))
    ending = str(file.name).rpartition(".")[2].lower()
    if ending not in READERS:
        said = f"File: its name must end in {', '.join(f'.{one}' for one in READERS)}."
        return _form(request, slug, preset, (Fault("file", said),))
    try:
        job = request_push(
            kept=keep_rows(chunks=file.chunks(), format=ending),
            slug=slug,
            preset=preset,
            actor=request.user,
            at=timezone.now(),
        )
    except BadPushRequest as bad:
        faults = tuple(
            Fault(_FIELDS[name][0], f"{_FIELDS[name][1]}: {text}.")
            for name, text in bad.fields.items()
        )
        return _form(request, slug, preset, faults)
    except OtherContent as taken:
        fault = Fault("experiment", f"Name: {taken}.")
        return _form(request, slug, preset, (fault,), status=409)
    except PushTooLarge as refused:
        return _form(request, slug, preset, (Fault("file", f"File: {refused}."),), status=413)
    except BadRows as bad_rows:
        fault = Fault("file", "File: nothing was stored; the rows to correct are listed above.")
        return _form(request, slug, preset, (fault,), problems=tuple(map(str, bad_rows.problems)))
    except (BadPush, UnmatchedReplicates) as refused:
        return _form(request, slug, preset, (Fault("file", f"File: {refused}"),))
    return redirect("job", uid=job.uid)


def _form(
    request: HttpRequest,
    experiment: str = "",
    preset: str = Preset.DEFAULT,
    faults: tuple[Fault, ...] = (),
    *,
    problems: tuple[str, ...] = (),
    status: int = 400,
) -> HttpResponse:
    page = PushPage(
        experiment=experiment,
        preset=str(preset),
        presets=tuple(choice.value for choice in Preset),
        faults=faults,
        problems=problems[:SHOWN],
        problems_left_out=max(0, len(problems) - SHOWN),
        largest_mb=LARGEST_BYTES // 1_000_000,
        most_rows=f"{MOST_ROWS:,}",
    )
    return render_page(request, "runs/push.html", page, status=status if faults else 200)
