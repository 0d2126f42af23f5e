"""Comparisons with other tools, measured side by side in one run."""
