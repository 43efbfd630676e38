"""The list of data sets."""

from __future__ import annotations

from gnntrain.inventory import dataset_rows


def test_every_published_data_set_has_its_sizes() -> None:
    rows = {row[0]: row[1:] for row in dataset_rows([])}
    assert rows["cora"] == ["2,708", "10,556", "1,433", "7", "-"]
    assert rows["synthetic_reddit"][:2] == ["232,965", "114,615,892"]
    assert rows["files"] == ["-"] * 5
    assert [name for name, row in rows.items() if row[0] == "-"] == ["files"]
