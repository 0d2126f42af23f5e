"""Blinded labelling of runs and the agreement of raters.

Nothing is here yet but the app's place in the layers: above ``runs``, so that
no run can ever depend on a label.
"""
