"""Worlds with known truth, by name, and any classification table turned into one.

The protocol of section 7: every label is an action, the reward is I(Y = a), 16 features of pure noise are added,
and a softmax policy with theta ~ N(0, kappa I) decides which action each row shows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError
from ponn.log.profile import CATEGORY, kind_of, numbers, texts
from ponn.policy.inference import draw_actions, softmax
from ponn.simulate import datasets
from ponn.simulate.breast_cancer import breast_cancer
from ponn.simulate.synthetic import synthetic
from ponn.simulate.worlds import VALID_SHARE, World, observe, softmax_policy, split_rows
from ponn.tables.table import read_table

SCALINGS = ("paper", "hard")
NOISE_FEATURES = 16  # section 7.1
KAPPA = {"pendigits": 0.25, "satimage": 0.5, "optdigits": 0.5}  # section 7.2.1


def world(
    name: str,
    *,
    seed: int = 0,
    scaling: str = "paper",
    rows: int | None = None,
    known_propensity: bool = False,
) -> World:
    """Make one of the named worlds: a log with its truth.

    Parameters
    ----------
    name
        A key of `ponn.simulate.WORLDS`, e.g. "breast-cancer", "kidney-stones", "satimage", "actg175".
    seed
        Decides every draw.
    scaling
        Of the UCI tables: "paper" or "hard", see `to_bandit`.
    rows
        Another size, where the world has one.
    known_propensity
        Whether the log has a column with the true propensity of the logged action.

    Returns
    -------
    World
        `log`, `propensities`, `rewards`, `expected`, and row numbers `train`, `valid`, `test`.

    Examples
    --------
    >>> import ponn
    >>> world = ponn.simulate.world("breast-cancer", rows=500, seed=0)
    >>> world.log
    Log(500 rows, 6 actions, 14 features)
    >>> best_there_is = float(world.expected.max(axis=1).mean())
    >>> world.value(world.propensities) < best_there_is  # current practice
    True
    """
    if name not in WORLDS:
        raise PonnError(f"There is no world {name!r}; expected one of {', '.join(WORLDS)}.")
    if scaling not in SCALINGS:
        raise PonnError(f"The scaling is {scaling!r}; expected one of {', '.join(SCALINGS)}.")
    if rows is not None and rows < 1:
        raise PonnError(f"rows is {rows}; expected a positive number.")
    return WORLDS[name](name, seed, scaling, rows, known_propensity)


# Classification tables -----------------------------------------------------------------------------------


def to_bandit(
    X: Any,
    y: Any,
    kappa: float = 0.25,
    noise: int = NOISE_FEATURES,
    scaling: str = "paper",
    seed: int = 0,
    *,
    name: str = "classification",
    about: str = "A classification table turned into a log: labels became actions, the logging policy is simulated.",
    known_propensity: bool = False,
) -> World:
    """Turn a classification table into a logged world: R_j(a) = I(Y_j = a), A_j drawn from a softmax policy.

    Parameters
    ----------
    X
        An array [n, d] or any Arrow-capable frame.
    y
        One label per row; labels become actions.
    kappa
        How strongly the logging policy prefers some actions (variance of its weights).
    noise
        Number of columns of noise that are added to the features.
    scaling
        "paper" feeds the logging policy with rows of unit Euclidean norm, "hard" with standardised columns.
    seed
        Decides every draw.
    name, about
        What the world is called, and what it says of itself.
    known_propensity
        Whether the log has a column with the true propensity of the logged action.

    Returns
    -------
    World
        The log and its truth.

    Examples
    --------
    >>> import numpy as np
    >>> import ponn
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> world = ponn.simulate.to_bandit(X, np.where(X[:, 0] > 0, "left", "right"), noise=3)
    >>> world.log
    Log(100 rows, 2 actions, 5 features)
    >>> world.rewards.shape
    (100, 2)
    """
    rng = np.random.default_rng(seed)
    features = with_noise(feature_table(X), noise, rng)
    labels, Y = np.unique(np.asarray(y), return_inverse=True)
    if len(Y) != features.num_rows:
        raise PonnError(f"X has {features.num_rows} rows and y {len(Y)}; expected one label per row.")
    if len(labels) < 2:
        raise PonnError("y has only one label; expected at least two, which become the actions.")
    p0 = softmax_policy(scaled(design_of(features), scaling), len(labels), kappa, rng)  # [n, k]
    A = draw_actions(p0, rng)
    rewards = np.eye(len(labels))[Y]  # [n, k]
    taken = np.arange(len(Y)), A
    log = observe(
        features,
        A,
        rewards[taken].astype(np.int64),
        names=("action", "reward"),
        labels=labels.tolist(),
        propensity=p0[taken] if known_propensity else None,
    )
    return World(name, about, log, p0, rewards, rewards, *split_rows(len(Y), rng))


def feature_table(X: Any) -> pa.Table:
    """Features as a table; the columns of a plain array are called x1, x2, ..."""
    if isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise PonnError(f"X has {X.ndim} dimensions; expected an array [n, d].")
        return pa.table({f"x{i + 1}": X[:, i] for i in range(X.shape[1])})
    return read_table(X).table


def with_noise(features: pa.Table, noise: int, rng: np.random.Generator) -> pa.Table:
    """Add features that are irrelevant by construction, drawn from N(0, 1)."""
    for i, column in enumerate(rng.normal(size=(noise, features.num_rows))):
        features = features.append_column(f"noise{i + 1}", pa.array(column))
    return features


def design_of(features: pa.Table) -> np.ndarray:
    """What the logging policy sees: numbers as they are (missing: the mean), 0/1 per category."""
    columns = []
    for column in features.columns:
        if kind_of(column.type) == CATEGORY:
            cells = texts(column).combine_chunks()
            columns += [pc.fill_null(pc.equal(cells, one), False).to_numpy(False) for one in pc.unique(cells)]
        else:
            x = numbers(column).astype(float)
            columns.append(np.where(np.isnan(x), np.nanmean(x), x))
    return np.column_stack(columns).astype(float)  # [n, D]


def scaled(Z: np.ndarray, scaling: str) -> np.ndarray:
    """Rows of unit norm ("paper", the closest match to the paper's logging accuracies) or standard columns ("hard")."""
    if scaling == "paper":
        return np.asarray(Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), np.finfo(float).tiny))
    scale = Z.std(axis=0)
    return np.asarray((Z - Z.mean(axis=0)) / np.where(scale > 0, scale, 1.0))


def uci_world(name: str, seed: int, scaling: str, rows: int | None, known_propensity: bool) -> World:
    """One of the paper's three UCI sets, in its training part as the paper uses it."""
    table = datasets.load(name, "train")
    if rows is not None:
        if rows > table.num_rows:
            raise PonnError(f"The world {name!r} has {table.num_rows} rows; {rows} were asked for.")
        chosen = np.random.default_rng(seed).choice(table.num_rows, rows, replace=False)
        table = table.take(np.sort(chosen))
    return to_bandit(
        table.drop_columns(["label"]),
        table.column("label").to_numpy(),
        kappa=KAPPA[name],
        scaling=scaling,
        seed=seed,
        name=name,
        about=f"The UCI data set {name} turned into a log: its labels are the actions, {NOISE_FEATURES} features are "
        f"pure noise, the logging policy is simulated (scaling {scaling!r}).",
        known_propensity=known_propensity,
    )


# Kidney stones: the paper's Table 1 ----------------------------------------------------------------------

# stone size, treatment, successes, patients
KIDNEY_STONES = (
    ("small", "open surgery", 81, 87),
    ("large", "open surgery", 192, 263),
    ("small", "percutaneous nephrolithotomy", 234, 270),
    ("large", "percutaneous nephrolithotomy", 55, 80),
)


def kidney_stones(name: str, seed: int, scaling: str, rows: int | None, known_propensity: bool) -> World:
    """Table 1 as 700 rows. Cell frequencies stand for the truth: propensities and success rates by stone size."""
    total = sum(patients for *_, patients in KIDNEY_STONES)
    if rows not in (None, total):
        raise PonnError(f"The world {name!r} is a fixed table of {total} rows; {rows} were asked for.")
    size, treatment, success = expand_cells()
    sizes, S = np.unique(size, return_inverse=True)
    labels, A = np.unique(treatment, return_inverse=True)
    N = np.zeros((len(sizes), len(labels)))  # [size, treatment]
    np.add.at(N, (S, A), 1)
    wins = np.zeros_like(N)
    np.add.at(wins, (S, A), success)
    p0 = (N / N.sum(axis=1, keepdims=True))[S]  # [n, k]
    taken = np.arange(total), A
    rewards = np.full(p0.shape, np.nan)
    rewards[taken] = success
    log = observe(
        pa.table({"stone_size": size}),
        A,
        success,
        names=("treatment", "success"),
        labels=labels.tolist(),
        propensity=p0[taken] if known_propensity else None,
    )
    about = "Table 1 of the paper, patient by patient; success rates and propensities are the table's frequencies."
    return World(name, about, log, p0, rewards, (wins / N)[S], *split_rows(total, np.random.default_rng(seed)))


def expand_cells() -> tuple[list[str], list[str], np.ndarray]:
    """Stone size, treatment and success of each patient."""
    size, treatment, success = [], [], []
    for one_size, one_treatment, successes, patients in KIDNEY_STONES:
        size += [one_size] * patients
        treatment += [one_treatment] * patients
        success += [1] * successes + [0] * (patients - successes)
    return size, treatment, np.array(success)


# ACTG 175: a real trial with four randomised arms --------------------------------------------------------

ARMS = ("zidovudine", "zidovudine + didanosine", "zidovudine + zalcitabine", "didanosine")
# Known before randomisation. Left out: what was measured after it, the identifier, and zprior (the same for all).
ACTG_FEATURES = (
    *("age", "wtkg", "hemo", "homo", "drugs", "karnof", "oprior", "z30", "preanti", "race", "gender"),
    *("str2", "strat", "symptom", "cd40", "cd80"),
)
# The biased half is kept with these log-odds per standard deviation, as a clinic might prescribe: few CD4 cells
# or symptoms call for a combination, the old and the long treated get one drug.
ACTG_BIAS = {  # feature: one number per arm, in the order of ARMS
    "cd40": (1.0, -1.0, -0.5, 0.5),
    "age": (0.5, -0.5, 0.0, 0.0),
    "preanti": (-0.5, 0.5, 0.5, -0.5),
    "symptom": (-0.5, 0.5, 0.0, 0.0),
}
ACTG_MIX = 0.5  # share of uniform choice in the biased half's propensities, so that none is under 1/8


def actg175(name: str, seed: int, scaling: str, rows: int | None, known_propensity: bool) -> World:
    """The trial cut in two at random: one half biased by rejection (train, valid), the other left as it is (test).

    A patient x in arm a of the first half is kept with probability pi(a | x) / max pi. Arms were randomised 1:1:1:1,
    so among the kept P(A = a | x) = pi(a | x) exactly, and keeping does not depend on x.
    """
    rng = np.random.default_rng(seed)
    table = datasets.load(name)
    order = np.argsort(np.argsort(ARMS))  # arm as in the table → its place among sorted labels
    A = order[table.column("arms").to_numpy()]
    biased, kept = np.zeros(len(A), bool), np.ones(len(A), bool)
    biased[rng.permutation(len(A))[: len(A) // 2]] = True
    pi = actg_policy(table)[:, np.argsort(ARMS)]  # [n, k]
    taken = pi[np.arange(len(A)), A]
    kept[biased] = (rng.random(len(A)) < taken / pi.max())[biased]
    p0 = np.where(biased[:, None], pi, 1 / len(ARMS))
    chosen = np.flatnonzero(kept)
    if rows is not None:
        raise PonnError(f"The world {name!r} is a real trial of fixed size; {rows} rows were asked for.")
    success = 1 - table.column("cens").to_numpy()[chosen]
    n = np.arange(len(chosen))
    A, p0, biased = A[chosen], p0[chosen], biased[chosen]
    rewards = np.full(p0.shape, np.nan)
    rewards[n, A] = success
    log = observe(
        table.select(ACTG_FEATURES).take(chosen),
        A,
        success,
        names=("arm", "no_event"),
        labels=sorted(ARMS),
        propensity=p0[n, A],
    )
    about = (
        "A real trial, ACTG 175: 'no_event' means no death, AIDS or fall of CD4 cells by half. Training and "
        "validation rows were biased by rejection with known propensities, test rows are as randomised (1/4 each)."
    )
    train, valid = halves(np.flatnonzero(biased), rng)
    return World(name, about, log, p0, rewards, np.full(p0.shape, np.nan), train, valid, np.flatnonzero(~biased))


def actg_policy(table: pa.Table) -> np.ndarray:
    """pi(a | x) of the biased half: a softmax of the documented log-odds, mixed with uniform choice."""
    Z = np.column_stack([table.column(name).to_numpy() for name in ACTG_BIAS]).astype(float)
    scores = scaled(Z, "hard") @ np.array(list(ACTG_BIAS.values()))  # [n, k], arms in the order of ARMS
    return np.asarray(ACTG_MIX / len(ARMS) + (1 - ACTG_MIX) * softmax(scores))


def halves(rows: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation rows of the biased part."""
    rows = rng.permutation(rows)
    cut = round((1 - VALID_SHARE) * len(rows))
    return np.sort(rows[:cut]), np.sort(rows[cut:])


def breast_cancer_world(name: str, seed: int, scaling: str, rows: int | None, known_propensity: bool) -> World:
    """The chemotherapy simulation."""
    return breast_cancer(rows=rows or 10_000, seed=seed, known_propensity=known_propensity)


def synthetic_world(name: str, seed: int, scaling: str, rows: int | None, known_propensity: bool) -> World:
    """The parametric world with its default parameters."""
    return synthetic(rows=rows or 10_000, seed=seed, known_propensity=known_propensity)


WORLDS: dict[str, Callable[[str, int, str, int | None, bool], World]] = {
    "kidney-stones": kidney_stones,
    "breast-cancer": breast_cancer_world,
    "pendigits": uci_world,
    "satimage": uci_world,
    "optdigits": uci_world,
    "actg175": actg175,
    "synthetic": synthetic_world,
}
