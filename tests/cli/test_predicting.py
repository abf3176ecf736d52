"""predict, score and learn as users type them."""

import csv
import json
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PUBLISHED = files("trimaran") / "published" / "published.csv"


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_predict_keeps_every_row_and_adds_its_prediction(trimaran: Command, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(PUBLISHED.read_text("utf-8"))
    ran = trimaran("predict", "in.csv", "-o", "out.csv")
    assert ran.code == 0
    before, after = rows(tmp_path / "in.csv"), rows(tmp_path / "out.csv")
    assert [{k: row[k] for k in before[0]} for row in after] == before
    best = next(row for row in after if row["id"] == "s000-L473")  # DP 8, TP 4, PP 12, MBS 4: 111.89 s, 60 GB
    assert float(best["pred_sec_low"]) < 111.89 < float(best["pred_sec_high"])
    assert float(best["pred_mem_gb"]) == pytest.approx(60, rel=0.1)
    assert best["pred_fits"] == "true"
    oom = next(row for row in after if row["id"] == "s000-L480")
    assert oom["pred_fits"] == "false"
    unknown = next(row for row in after if row["id"] == "s000-L014")  # its batch is not stated
    assert (unknown["pred_sec_per_it"], unknown["pred_note"]) == ("", "not predicted: gbs not stated")


def test_predict_takes_few_columns_foreign_columns_and_a_named_cluster(trimaran: Command, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("who,layers,hidden,gbs,tp,pp,dp,mbs\nme,70,14336,2048,4,12,8,2\n")
    assert trimaran("predict", "in.csv", "--cluster", "hgx-h200", "-o", "out.csv").code == 0
    (row,) = rows(tmp_path / "out.csv")
    assert row["who"] == "me"
    assert float(row["pred_sec_per_it"]) > 0


def test_columns_of_a_row_choose_its_cluster_and_attention(trimaran: Command, tmp_path: Path) -> None:
    """Flash attention keeps no scores, so it needs less memory and time; a faster card is faster."""
    text = "layers,hidden,heads,gbs,tp,cp,cluster,attention\n"
    text += "24,2048,16,8,1,1,selene,naive\n24,2048,16,8,1,1,selene,flash\n24,2048,16,8,1,1,hgx-h200,flash\n"
    (tmp_path / "in.csv").write_text(text)
    assert trimaran("predict", "in.csv", "-o", "out.csv").code == 0
    naive, flash, faster = rows(tmp_path / "out.csv")
    assert float(flash["pred_mem_gb"]) < float(naive["pred_mem_gb"])
    assert float(faster["pred_sec_per_it"]) < float(flash["pred_sec_per_it"]) < float(naive["pred_sec_per_it"])


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("layers,hidden,gbs\n70,nan,2048\n", (), ["in.csv:2", "hidden", "nan"]),
        ("", (), ["in.csv is empty"]),
        ("layers,hidden,gbs\n", (), ["no row"]),
        ("layers,hidden,gbs\n70," + "9" * 200_000 + ",8\n", (), ["in.csv:2", "not valid CSV"]),
        ("layers,hidden,gbs\n70,14336,2048\n", ("-o", "no/such/out.csv", "--cluster", "selene"), ["cannot be written"]),
        ("layers,hidden,gbs\n70,14336,2048\n", (), ["no device", "--cluster"]),
        ("layers,hidden,gbs,device\n70,14336,2048,z80\n", (), ["'z80'", "a100-80gb"]),
        ("layers,hidden,gbs,attention\n70,14336,8,fast\n", ("--cluster", "selene"), ["'fast'", "flash"]),
        ("layers,hidden,gbs\n70,14336,2048\n", ("--cluster", "hgx-h300"), ["'hgx-h300'", "'hgx-h200'"]),
        ("layers,hidden,gbs\n70,14336,2048\n", ("--cluster", "bare.yaml"), ["device", "lacks"]),
    ],
)
def test_what_cannot_be_predicted_gets_a_sentence(
    trimaran: Command, tmp_path: Path, text: str, arguments: tuple[str, ...], words: list[str]
) -> None:
    (tmp_path / "in.csv").write_text(text)
    (tmp_path / "bare.yaml").write_text("devices_per_node: 8\n")
    ran = trimaran("predict", "in.csv", "-o", "out.csv", *arguments)
    assert ran.code == 2
    assert not (tmp_path / "out.csv").exists()
    for word in words:
        assert word in ran.err


def test_score_of_the_published_rows_per_table_and_in_total(trimaran: Command) -> None:
    scores = {row["table"]: row for row in json.loads(trimaran("score", "--published", "--json").out)}
    assert scores["all on a100-80gb by megatron-deepspeed"]["mape"] < 0.032
    assert scores["all"]["fit_wrong"] <= 1
    assert scores["all"]["memory_mape"] < 0.07
    assert 0.7 < scores["all"]["coverage"] < 0.95


def test_learn_from_a_ledger_and_predict_with_what_it_wrote(trimaran: Command, tmp_path: Path) -> None:
    trimaran("import", "--published")
    ran = trimaran("learn", "--on", "fugaku", "-o", "mine.yaml", "--json")
    learned = json.loads(ran.out)
    assert learned["seconds_mape"] < 0.06
    assert "layer_us" in learned["undetermined"]
    (tmp_path / "in.csv").write_text("layers,hidden,heads,gbs,tp,pp,dp,recompute\n48,7168,56,1536,4,48,8,full\n")
    trimaran("predict", "in.csv", "--cluster", "mine.yaml", "--trainer", "megatron-deepspeed-2022", "-o", "out.csv")
    (row,) = rows(tmp_path / "out.csv")
    assert float(row["pred_sec_per_it"]) == pytest.approx(558.7, rel=0.1)  # measured on 1536 nodes


def test_learning_from_nothing_gets_a_sentence(trimaran: Command) -> None:
    trimaran("import", "--published")
    assert "cannot be written" in trimaran("learn", "--on", "fugaku", "-o", "no/such/cluster.yaml").err
    ran = trimaran("learn", "--on", "hgx-h200")
    assert ran.code == 2
    assert "no trial of the device h200" in ran.err
