"""Item text made readable, and made harmless."""

from __future__ import annotations

import pytest

from workbench.glossary import MEANINGS, SECTIONS
from workbench.templatetags.workbench import HIGHLIGHT_AT_MOST, highlight, minus, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("a\r\nb", "a\nb"),
        ("\x1b[31m", "␛[31m"),
        ("\x00", "␀"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\u200bb\ufeff", "a⟨U+200B⟩b⟨U+FEFF⟩"),
        ("\x9b", "⟨U+009B⟩"),
        ("前缀 é ≤", "前缀 é ≤"),
    ],
)
def test_unseen_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-15.9 points [-21.9, -10.2]", "−15.9 points [−21.9, −10.2]"),
        ("two-pointer 2026-03-02 x-1", "two-pointer 2026-03-02 x-1"),
        ("1e-5", "1e-5"),
    ],
)
def test_only_negative_numbers_get_a_minus(text: str, shown: str) -> None:
    assert minus(text) == shown


def test_program_text_is_escaped_inside_its_colours() -> None:
    html = highlight("if a < b: return '</pre><script>'", "python")
    assert '<span class="k">if</span>' in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_other_and_long_text_is_left_for_the_template_to_escape() -> None:
    assert highlight("<b>", "text") == "<b>"
    assert not hasattr(highlight("<b>", "text"), "__html__")
    long = "x = 1\n" * HIGHLIGHT_AT_MOST
    assert highlight(long, "python") == long
    assert not hasattr(highlight(long, "python"), "__html__")


def test_a_glossary_word_has_one_entry() -> None:
    keys = [entry.key for section in SECTIONS for entry in section.entries]
    assert len(keys) == len(set(keys)) == len(MEANINGS)
