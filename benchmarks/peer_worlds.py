"""The worlds in which methods are compared: UCI tables, a simulated clinic, parametric worlds, and real tables.

symbol   meaning                                              shape
A        arm or dose class of a row, as a number              [n]
pi       logging policy that is simulated                     [n, k]
p0       probability of every action in the row as it is kept [n, k]
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import ponn
from ponn.policy.inference import draw_actions, softmax
from ponn.simulate.catalogue import design_of, halves, scaled
from ponn.simulate.synthetic import synthetic
from ponn.simulate.worlds import World, observe, split_rows
from ponn.tables.table import read_table

UCI = tuple(f"{name} {scaling}" for scaling in ("paper", "hard") for name in ("pendigits", "satimage", "optdigits"))
SMALL, LARGE = 5_000, 10_000  # rows; the larger for 50 actions

# All eight combinations of bias, relevance and reward; the shape of the effects is their product (step where an even
# number of them is of the second kind), so that any three of the four columns are balanced. The numbers of actions go
# to pairs of opposite corners, 3 and 10 to half of a pair more.
WEAK, STRONG = {"bias": 0.5}, {"bias": 2.0}
SPARSE, DENSE = {"features": 30, "relevant": 3}, {"features": 20, "relevant": 12}
STEP, LINEAR = {"shape": "step"}, {"shape": "linear"}
BINARY, CONTINUOUS = {"reward": "binary"}, {"reward": "continuous"}
PARAMETRIC: dict[str, dict[str, Any]] = {
    "weak sparse binary 3": {**WEAK, **SPARSE, **BINARY, **STEP, "actions": 3, "effect": 0.15},
    "weak sparse continuous 50": {**WEAK, **SPARSE, **CONTINUOUS, **LINEAR, "actions": 50, "rows": LARGE},
    "weak dense binary 10": {**WEAK, **DENSE, **BINARY, **LINEAR, "actions": 10},
    "weak dense continuous 3": {**WEAK, **DENSE, **CONTINUOUS, **STEP, "actions": 3},
    "strong sparse binary 10": {**STRONG, **SPARSE, **BINARY, **LINEAR, "actions": 10},
    "strong sparse continuous 10": {**STRONG, **SPARSE, **CONTINUOUS, **STEP, "actions": 10, "effect": 0.15},
    "strong dense binary 50": {**STRONG, **DENSE, **BINARY, **STEP, "actions": 50, "rows": LARGE},
    "strong dense continuous 3": {**STRONG, **DENSE, **CONTINUOUS, **LINEAR, "actions": 3},
}
SIMULATED = (*UCI, "breast-cancer", *PARAMETRIC)


def make_world(name: str, seed: int, data: Path | None = None, quick: bool = False) -> World:
    """The world of a seed; quick: a fifth of the rows where they can be chosen."""
    if name in REAL:
        return REAL[name].make(REAL[name].table(data), seed)
    if name in PARAMETRIC:
        given = {"rows": SMALL, **PARAMETRIC[name]}
        return synthetic(**{**given, "rows": given["rows"] // (5 if quick else 1)}, seed=seed)
    first, _, scaling = name.partition(" ")
    return ponn.simulate.world(first, seed=seed, scaling=scaling or "paper", rows=1_500 if quick else None)


# Real tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealTable:
    """A table that is not shipped: its file, and how it becomes a world."""

    file: str
    make: Callable[[pa.Table, int], World]

    def table(self, folder: Path | None) -> pa.Table:
        """The table as it is."""
        if not self.there(folder):
            raise FileNotFoundError(f"{self.file} is not in {folder}.")
        return read_table(Path(folder or ".") / self.file).table

    def there(self, folder: Path | None) -> bool:
        """Is the file in the folder?"""
        return folder is not None and (folder / self.file).exists()


# Hillstrom's mail-order customers: three arms, randomised 1:1:1; the reward is a visit within two weeks.
HILLSTROM_FEATURES = ("recency", "history_segment", "history", "mens", "womens", "zip_code", "newbie", "channel")
# Log-odds per standard deviation with which one half is kept, as a shop might write: to women's customers about women's
# clothes, to men's about men's, not at all to those who bought long ago or little.
HILLSTROM_BIAS: Mapping[str, tuple[float, float, float]] = {  # mens e-mail, no e-mail, womens e-mail
    "mens": (0.8, 0.0, -0.8),
    "womens": (-0.8, 0.0, 0.8),
    "recency": (-0.5, 1.0, -0.5),
    "history": (0.3, -0.6, 0.3),
}
UNIFORM_SHARE = 0.3  # of uniform choice in a simulated policy: no probability is below a tenth


def mixed(scores: np.ndarray) -> np.ndarray:
    """A softmax policy with a share of uniform choice."""
    return np.asarray(UNIFORM_SHARE / scores.shape[1] + (1 - UNIFORM_SHARE) * softmax(scores))  # [n, k]


def hillstrom(table: pa.Table, seed: int) -> World:
    """The trial cut in two at random: one half biased by rejection with known propensities, the other as it is.

    A customer x in arm a of the first half is kept with probability pi(a | x) / max pi. As arms were randomised 1:1:1,
    P(A = a | x) = pi(a | x) among the kept, and keeping does not depend on x.
    """
    rng = np.random.default_rng(seed)
    arms = np.array(table.column("segment").to_pylist())
    labels, A = np.unique(arms, return_inverse=True)
    n, k = len(A), len(labels)
    Z = np.column_stack([table.column(name).to_numpy() for name in HILLSTROM_BIAS]).astype(float)
    pi = mixed(scaled(Z, "hard") @ np.array(list(HILLSTROM_BIAS.values())))  # [n, k]
    biased = np.isin(np.arange(n), rng.permutation(n)[: n // 2])
    chosen = np.flatnonzero(~biased | (rng.random(n) < pi[np.arange(n), A] / pi.max()))
    p0 = np.where(biased[:, None], pi, 1 / k)[chosen]
    A, biased, visit = A[chosen], biased[chosen], table.column("visit").to_numpy()[chosen]
    taken = np.arange(len(A)), A
    rewards = np.full(p0.shape, np.nan)
    rewards[taken] = visit
    log = observe(
        table.select(HILLSTROM_FEATURES).take(chosen),
        A,
        visit,
        names=("segment", "visit"),
        labels=labels.tolist(),
        propensity=p0[taken],
    )
    about = "A real trial of e-mails; training rows biased by rejection with known propensities, test rows randomised."
    nobody_knows = np.full(p0.shape, np.nan)
    return World(
        "hillstrom",
        about,
        log,
        p0,
        rewards,
        nobody_knows,
        *halves(np.flatnonzero(biased), rng),
        np.flatnonzero(~biased),
    )


# The warfarin cohort of the IWPC: the dose that suited a patient is known, hence the reward of every dose class.
DOSE, LOW_DOSE, HIGH_DOSE = "Therapeutic Dose of Warfarin", 21.0, 49.0  # mg per week, as usual in this literature
DOSE_CLASSES = ("1 low", "2 medium", "3 high")  # sorted, as actions of a log are
WARFARIN_FEATURES = {
    "Gender": "gender",
    "Race": "race",
    "Age": "age",
    "Height (cm)": "height",
    "Weight (kg)": "weight",
    "Diabetes": "diabetes",
    "Congestive Heart Failure and/or Cardiomyopathy": "heart_failure",
    "Valve Replacement": "valve_replacement",
    "Aspirin": "aspirin",
    "Amiodarone (Cordarone)": "amiodarone",
    "Carbamazepine (Tegretol)": "carbamazepine",
    "Phenytoin (Dilantin)": "phenytoin",
    "Rifampin or Rifampicin": "rifampin",
    "Current Smoker": "smoker",
    "CYP2C9 consensus": "cyp2c9",
    "VKORC1 -1639 consensus": "vkorc1",
}
# Log-odds of low and of high doses per standard deviation of the body's weight and of age, as a doctor without a
# genetic test might dose: heavy and young patients get more.
WARFARIN_BIAS = {"weight": (-0.8, 0.0, 0.8), "age": (0.8, 0.0, -0.8)}


def warfarin(table: pa.Table, seed: int) -> World:
    """Three dose classes, reward 1 for the one that suited the patient; a doctor's choice by weight and age."""
    rng = np.random.default_rng(seed)
    table = table.filter(pc.is_valid(table.column(DOSE)))
    dose = table.column(DOSE).to_numpy().astype(float)
    best = np.digitize(dose, (LOW_DOSE, np.nextafter(HIGH_DOSE, np.inf)))  # low < 21 <= medium <= 49 < high
    features = table.select(list(WARFARIN_FEATURES)).rename_columns(list(WARFARIN_FEATURES.values()))
    decade = pc.cast(pc.utf8_slice_codeunits(features.column("age"), 0, 1), pa.float64())
    features = features.set_column(features.schema.get_field_index("age"), "age", pc.multiply(decade, 10.0))
    Z = scaled(design_of(features.select(list(WARFARIN_BIAS))), "hard")
    p0 = mixed(Z @ np.array(list(WARFARIN_BIAS.values())))
    A, rewards = draw_actions(p0, rng), np.eye(len(DOSE_CLASSES))[best]
    taken = np.arange(len(A)), A
    log = observe(features, A, rewards[taken].astype(np.int64), names=("dose", "right"), labels=list(DOSE_CLASSES))
    about = "Real patients whose suitable dose is known; the choice of a doctor by weight and age is simulated."
    return World("warfarin", about, log, p0, rewards, rewards, *split_rows(len(A), rng))


REAL = {
    "hillstrom": RealTable("hillstrom.csv.gz", hillstrom),
    "warfarin": RealTable("iwpc_warfarin.csv.gz", warfarin),
}
