"""The breast cancer world: a simulation in the shape of the paper's section 7.2, whose data are not public.

symbol   meaning                                                                     shape
Z        latent normal features; each has at most one parent                         [n, d]
cell     the level of each feature, as a number                                      [n, d]
X        coded features, scaled to mean 0 and variance 1 in the whole population      [n, d]
beta     change of the log-odds of survival per standard deviation of X_i            [k, d]
b        intercepts of the log-odds                                                  [k]
r        r(a, x) = 1 / (1 + exp(-b[a] - sum_i beta[a, i] x_i))                        [n, k]
P        probability of every combination of levels                                  one axis per feature
g        true relevance g(a, i) = E l(r(a, X_i) - r(a)) (section 4.2.1)              [k, d]

Which features matter for which regimen is what the paper reports as selected (AT, which it leaves out, is our
choice). Mean survival is near the paper's; EFFECT SIZES ARE INVENTED.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.policy.inference import draw_actions
from ponn.simulate.normal import normal_cdf, panels
from ponn.simulate.worlds import LOSSES, World, observe, read_only, softmax_policy, split_rows

ABOUT = (
    "A simulation in the shape of the paper's breast cancer data (NSABP), which are not public. Which features "
    "matter for which regimen follows the paper, mean survival is near the paper's; the patients and all effect "
    "sizes are invented. No result on it says anything about a treatment, or compares with the paper's numbers."
)

# Patients ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feature:
    """A feature whose level is read off a latent normal variable: levels[c] between cuts[c - 1] and cuts[c].

    Numbers are their own code; text levels are coded 0, 1, ... in the order given. A nominal feature has no order:
    the logging policy sees one indicator per level.
    """

    name: str
    levels: tuple[str, ...] | tuple[int, ...]
    cuts: tuple[float, ...]
    parent: str | None = None
    latent: float = 0.0  # correlation of Z with the parent's
    nominal: bool = False

    @property
    def codes(self) -> np.ndarray:
        """The levels as numbers."""
        is_text = isinstance(self.levels[0], str)
        return np.array(range(len(self.levels)) if is_text else self.levels, float)

    @property
    def shares(self) -> np.ndarray:
        """How frequent each level is."""
        return np.diff(normal_cdf(np.array([-np.inf, *self.cuts, np.inf])))

    @property
    def scaled(self) -> np.ndarray:
        """The codes, scaled to mean 0 and variance 1 in the whole population."""
        centred = self.codes - self.shares @ self.codes
        return np.asarray(centred / math.sqrt(self.shares @ centred**2))


def by_share(shares: dict[str, float] | dict[int, float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Levels, and the latent cuts that make them as frequent as given."""
    reached = np.cumsum(list(shares.values()))[:-1]
    return tuple(shares), tuple(NormalDist().inv_cdf(share) for share in reached)  # type: ignore[arg-type]


# Age is normal with mean 56 and standard deviation 11 years, cut at 25 and 90.
AGES = tuple(range(25, 91))
AGE_CUTS = tuple((age - 0.5 - 56) / 11 for age in AGES[1:])
# The number of positive nodes is floor(exp(1.3 Z)), at most 30: half of the patients have none, 4 % ten or more.
NODES = tuple(range(31))
NODE_CUTS = tuple(math.log(count) / 1.3 for count in NODES[1:])

# The latent correlations give these correlations of the codes below (Pearson, text coded 0 and 1 in the order
# given, numbers as they are): age-menopause 0.75, ER-PR 0.53, stage-nodes 0.45, grade-ER -0.37,
# surgery-radiotherapy -0.44. Solved from the exact joint distribution; a test solves them again.
FEATURES = (
    Feature("age", AGES, AGE_CUTS),
    Feature("menopausal_status", *by_share({"pre": 0.35, "post": 0.65}), "age", 0.964604),
    Feature("race", *by_share({"white": 0.78, "black": 0.12, "hispanic": 0.06, "asian": 0.04}), nominal=True),
    Feature("estrogen_receptor", *by_share({"negative": 0.3, "positive": 0.7})),
    Feature("progesterone_receptor", *by_share({"negative": 0.4, "positive": 0.6}), "estrogen_receptor", 0.761640),
    Feature("her2", *by_share({"negative": 0.8, "positive": 0.2})),
    Feature("tumor_stage", *by_share({1: 0.3, 2: 0.45, 3: 0.2, 4: 0.05})),
    Feature("tumor_grade", *by_share({1: 0.2, 2: 0.45, 3: 0.35}), "estrogen_receptor", -0.544301),
    Feature("positive_lymph_nodes", NODES, NODE_CUTS, "tumor_stage", 0.636032),
    Feature("who_score", *by_share({0: 0.55, 1: 0.3, 2: 0.1, 3: 0.04, 4: 0.01})),
    Feature("surgery_type", *by_share({"lumpectomy": 0.5, "mastectomy": 0.5})),
    Feature("prior_chemotherapy", *by_share({"no": 0.85, "yes": 0.15})),
    Feature("prior_radiotherapy", *by_share({"no": 0.55, "yes": 0.45}), "surgery_type", -0.639791),
    Feature("histology", *by_share({"ductal": 0.78, "lobular": 0.14, "other": 0.08}), nominal=True),
)
NAMES = tuple(feature.name for feature in FEATURES)

# Survival ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regimen:
    """Log-odds of survival: b plus beta per standard deviation of the coded feature."""

    b: float  # solved so that mean survival is `mean`; a test solves it again
    mean: float
    beta: dict[str, float]


# Every effect is invented: an odds ratio of e or 1/e per standard deviation (the largest we allow is 3), so that
# the causes can be found in 10,000 biased rows. The signs are chosen so that each regimen is best for many patients.
REGIMENS = {
    "AC": Regimen(1.422405, 0.72, {"age": 1.0, "tumor_stage": -1.0, "tumor_grade": -1.0}),
    "ACT": Regimen(1.459321, 0.74, {"age": -1.0, "tumor_grade": 1.0, "positive_lymph_nodes": -1.0}),
    "AT": Regimen(1.364615, 0.72, {"estrogen_receptor": -1.0, "her2": 1.0}),
    "CAF": Regimen(1.365776, 0.73, {"menopausal_status": 1.0, "surgery_type": -1.0}),
    "CEF": Regimen(1.448455, 0.74, {"age": -1.0, "estrogen_receptor": -1.0}),
    "CMF": Regimen(1.382933, 0.71, {"estrogen_receptor": 1.0, "progesterone_receptor": 1.0}),
}
BETA = np.array([[one.beta.get(name, 0.0) for name in NAMES] for one in REGIMENS.values()])  # [k, d]
INTERCEPTS = np.array([one.b for one in REGIMENS.values()])  # [k]


def breast_cancer(rows: int = 10_000, seed: int = 0, kappa: float = 0.25, known_propensity: bool = False) -> World:
    """Simulated patients, regimens chosen by the paper's biased softmax, survival under every regimen.

    theta ~ N(0, kappa I) acts on the standardised coded features. Effects do not depend on the seed.
    """
    check_call(rows, kappa)
    patient_rng, theta_rng, action_rng, reward_rng, split_rng = np.random.default_rng(seed).spawn(5)
    cell = draw_patients(rows, patient_rng)  # [n, d]
    p0 = softmax_policy(logging_features(cell), len(REGIMENS), kappa, theta_rng)  # [n, k]
    r = success(cell)  # [n, k]
    A = draw_actions(p0, action_rng)  # [n]
    survived = (reward_rng.random(r.shape) < r).astype(np.int64)  # [n, k]
    j = np.arange(rows)
    log = observe(
        as_table(cell),
        A,
        survived[j, A],
        names=("regimen", "survived"),
        propensity=p0[j, A] if known_propensity else None,
        labels=[*REGIMENS],
    )
    return World(
        name="breast-cancer",
        about=ABOUT,
        log=log,
        propensities=p0,
        rewards=survived,
        expected=r,
        **split_rows(rows, split_rng)._asdict(),
        relevance=dict(true_relevance()),
        causes=BETA != 0,
    )


def check_call(rows: int, kappa: float) -> None:
    """Rows can be drawn and theta has a variance."""
    if rows < 1:
        raise PonnError(f"rows is {rows}; expected at least 1.")
    if not 0 <= kappa < math.inf:
        raise PonnError(f"kappa is {kappa}; expected the variance of theta, a finite number of at least 0.")


def draw_patients(rows: int, rng: np.random.Generator) -> np.ndarray:
    """The level of every feature; parents come before their children."""
    Z = rng.standard_normal((rows, len(FEATURES)))  # [n, d]
    for i, feature in enumerate(FEATURES):
        if feature.parent:
            rho, parent = feature.latent, Z[:, NAMES.index(feature.parent)]
            Z[:, i] = rho * parent + math.sqrt(1 - rho**2) * Z[:, i]
    cells = [np.searchsorted(feature.cuts, Z[:, i]) for i, feature in enumerate(FEATURES)]
    return np.stack(cells, axis=1)  # [n, d]


def as_table(cell: np.ndarray) -> pa.Table:
    """The patients as a clinician writes them down."""
    columns = (pa.array(one.levels).take(pa.array(cell[:, i])) for i, one in enumerate(FEATURES))
    return pa.table(dict(zip(NAMES, columns, strict=True)))


def coded(cell: np.ndarray) -> np.ndarray:
    """X: the scaled codes."""
    return np.stack([one.scaled[cell[:, i]] for i, one in enumerate(FEATURES)], axis=1)  # [n, d]


def success(cell: np.ndarray) -> np.ndarray:
    """r(a, x), the probability of survival under every regimen."""
    return sigmoid(INTERCEPTS + coded(cell) @ BETA.T)  # [n, k]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def logging_features(cell: np.ndarray) -> np.ndarray:
    """The standardised features of the logging policy: X, with nominal features as standardised indicators."""
    columns = []
    for i, feature in enumerate(FEATURES):
        if feature.nominal:
            p = feature.shares
            columns.append((np.eye(len(p)) - p)[cell[:, i]] / np.sqrt(p * (1 - p)))
        else:
            columns.append(feature.scaled[cell[:, i], None])
    return np.concatenate(columns, axis=1)


# True relevance ------------------------------------------------------------------------------------------


@cache
def true_relevance() -> Mapping[str, np.ndarray]:
    """g(a, i) for the losses l1 and l2, by enumeration of all combinations of levels that bear on an action."""
    g = {name: np.zeros_like(BETA) for name in LOSSES}
    for a in range(len(BETA)):
        P, r = joint_success(a)
        mean = np.sum(P * r)
        for i in bearing(a):
            p = onto(i, P)  # [b_i]
            shift = onto(i, P * r) / p - mean  # r(a, x_i) - r(a) at every level  [b_i]
            for name, loss in LOSSES.items():
                g[name][a, i] = p @ loss(shift)
    return read_only(g)


def joint_success(a: int) -> tuple[np.ndarray, np.ndarray]:
    """P and r(a, x) with one axis per feature; features independent of all causes of `a` have length 1."""
    P = math.prod((family_table(parent) for parent in roots(a)), start=np.ones(1))
    effects = (BETA[a, i] * along(i, one.scaled) for i, one in enumerate(FEATURES) if BETA[a, i])
    return P, sigmoid(sum(effects, start=INTERCEPTS[a]))


def bearing(a: int) -> list[int]:
    """The causes of `a` and every feature that is related to one of them."""
    return [i for i in range(len(FEATURES)) if root(i) in roots(a)]


def roots(a: int) -> set[int]:
    """The roots of the causes of `a`."""
    return {root(i) for i in np.flatnonzero(BETA[a]).tolist()}


def root(i: int) -> int:
    """The feature itself, or its parent: features of different roots are independent."""
    parent = FEATURES[i].parent
    return NAMES.index(parent) if parent else i


def family_table(parent: int) -> np.ndarray:
    """Probability of every combination of levels of a root and its children, which are independent given Z."""
    family = [i for i in range(len(FEATURES)) if root(i) == parent]
    z, table = panels(FEATURES[parent].cuts, parts=4)  # [b, nodes]
    for i in family[1:]:
        chance = level_chances(FEATURES[i], z)  # [b, nodes, b_i]
        table = table[..., None] * np.expand_dims(chance, tuple(range(2, table.ndim)))
    sizes = [len(one.levels) if i in family else 1 for i, one in enumerate(FEATURES)]
    return np.asarray(table.sum(axis=1).reshape(sizes))


def level_chances(child: Feature, z: np.ndarray) -> np.ndarray:
    """P(level | Z of the parent = z)."""
    above = (np.array(child.cuts) - child.latent * z[..., None]) / math.sqrt(1 - child.latent**2)
    return np.diff(normal_cdf(above), axis=-1, prepend=0.0, append=1.0)  # [b, nodes, b_i]


def along(i: int, values: np.ndarray) -> np.ndarray:
    """Values per level of feature i, as an array with one axis per feature."""
    return values.reshape([-1 if axis == i else 1 for axis in range(len(FEATURES))])


def onto(i: int, table: np.ndarray) -> np.ndarray:
    """Sums per level of feature i."""
    return np.asarray(table.sum(axis=tuple(axis for axis in range(len(FEATURES)) if axis != i)))
