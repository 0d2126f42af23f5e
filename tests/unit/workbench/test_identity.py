"""Identities: canonical JSON, hashes and uids, for any text a model may write."""

from __future__ import annotations

import hashlib
import uuid

from hypothesis import given
from hypothesis import strategies as st

from workbench.kernel import identity


def test_a_lone_surrogate_hashes() -> None:
    # What JSON's "\\ud800" reads as has no UTF-8 form; its three bytes are ED A0 80.
    assert identity.sha256_of_text("\ud800") == hashlib.sha256(b"\xed\xa0\x80").hexdigest()
    assert identity.sha256_of("\ud800") == hashlib.sha256(b'"\xed\xa0\x80"').hexdigest()
    assert identity.sha256_of(["\ud800"]) != identity.sha256_of(["\ud801"])
    assert identity.uid_for("\ud800") != identity.uid_for("\ud801")


@given(st.text())
def test_other_text_keeps_its_identity(text: str) -> None:
    name = identity.canonical_json([text])
    assert identity.uid_for(text) == uuid.uuid5(identity.NAMESPACE, name)
    assert identity.sha256_of([text]) == hashlib.sha256(name.encode()).hexdigest()
