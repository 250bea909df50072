"""A tiny experiment, and how to change its file."""

from __future__ import annotations

from pathlib import Path

from expunge.deep.settings import Plan, read_plan

TINY = """
title = "Tiny"
seeds = [0, 1]
methods = ["finetune", "unsir"]
[data]
source = "digits"
rows = 80
test_rows = 60
[model]
kind = "mlp"
widths = [6]
[train]
epochs = 2
lr = 1
batch_size = 20
[forget]
kind = "random"
count = 12
[measure]
retrains = 1
relearn_cap = 4
relearn_orders = 1
[[method]]
name = "finetune"
label = "longer"
lr = 1
epochs = 2
"""


def written(where: Path, text: str = TINY, **changes: str) -> Plan:
    """Read a plan in which pieces of the text are replaced."""
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = where / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def edited(where: Path, old: str, new: str) -> Plan:
    return written(where, **{old: new})
