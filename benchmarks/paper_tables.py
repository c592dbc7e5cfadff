"""The paper's tables beside ours, as far as they can be recomputed: Table 1, Table 2 and the Logging row of Table 3."""

import argparse
from pathlib import Path

import numpy as np

import ponn
from ponn.encode import Encoding
from ponn.propensity import propensities
from ponn.relevance import relevance
from ponn.settings import Settings
from record import RESULTS, now, write_record

RUNS = 25
PRINTED_ROWS = {"pendigits": (16, 10, 7494), "satimage": (36, 6, 4435), "optdigits": (64, 10, 3893)}
PRINTED_LOGGING = {"pendigits": (10.12, 0.04), "satimage": (16.55, 0.54), "optdigits": (10.24, 0.08)}


def table_1() -> tuple[list[str], dict[str, object]]:
    """Kidney stones: crude success rates prefer the wrong treatment, corrected ones do not."""
    log = ponn.simulate.world("kidney-stones").log
    encoding = Encoding.fit(log)
    step_a = propensities(log, encoding, Settings(propensity_penalty=0.0))
    corrected = relevance(log, encoding, step_a).R_hat
    crude = [float(log.R[log.A == a].mean()) for a in range(2)]
    lines = ["| treatment | crude | corrected (Step A, IPS) |", "|---|---|---|"]
    for action, raw, ips in zip(log.actions, crude, corrected, strict=True):
        lines.append(f"| {action} | {raw:.4f} | {ips:.4f} |")
    return lines, {"actions": log.actions, "crude": crude, "corrected": corrected.tolist()}


def table_2() -> tuple[list[str], dict[str, object]]:
    """Data summary."""
    lines = ["| data set | features | labels | rows | printed rows |", "|---|---|---|---|---|"]
    raw = {}
    for name, (_, _, printed) in PRINTED_ROWS.items():
        table = ponn.datasets.load(name, "train")
        labels = len(table.column("label").unique())
        raw[name] = {"features": table.num_columns - 1, "labels": labels, "rows": table.num_rows}
        lines.append(f"| {name} | {table.num_columns - 1} | {labels} | {table.num_rows} | {printed} |")
    return lines, raw


def logging_row() -> tuple[list[str], dict[str, object]]:
    """Accuracy of the logging policy in percent, mean and 95 % half-width over the runs, both scalings."""
    lines = ["| data set | printed | scaling paper | scaling hard |", "|---|---|---|---|"]
    raw: dict[str, object] = {}
    for name, (printed, width) in PRINTED_LOGGING.items():
        cells = []
        for scaling in ("paper", "hard"):
            worlds = (ponn.simulate.world(name, seed=seed, scaling=scaling) for seed in range(RUNS))
            accuracy = [100 * world.accuracy(world.propensities) for world in worlds]
            raw[f"{name} {scaling}"] = accuracy
            cells.append(f"{np.mean(accuracy):.2f} ± {1.96 * np.std(accuracy, ddof=1) / np.sqrt(RUNS):.2f}")
        lines.append(f"| {name} | {printed} ± {width} | {' | '.join(cells)} |")
    return lines, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started = now()
    raw, text = {}, []
    sections = {
        "Table 1: kidney stones": table_1,
        "Table 2: data": table_2,
        f"Table 3, Logging: accuracy in %, {RUNS} runs": logging_row,
    }
    for title, build in sections.items():
        lines, raw[title] = build()
        text += [f"## {title}", "", *lines, ""]
    print("\n".join(text))
    write_record("paper_tables", raw, seed=0, started=started, folder=arguments.results)
    (arguments.results / "paper_tables.md").write_text("\n".join(["# The paper's tables, recomputed", "", *text]))


if __name__ == "__main__":
    main()
